// The call: cut into tasks, carried out by the threads in any order, every row's bits the same for all of them.
//
// The arithmetic of a row (n, h, i); T is double for float64, else float; fma is one rounding where the level has it:
//   1. q[d] = T(query[d]) * T(scale)
//   2. s = fma(q[d], k[d], s) for d = 0 ... D-1, from 0; bfloat16 of even width where the processor has products of pairs:
//      as pairs.hpp says
//   3. softcap: s = c tanh(s / c); alibi: s = fma(-slope, |i + offset - j|, s); bias: s = s + b
//   4. keys come in blocks counted from the row's origin; m is the maximum over the allowed scores so far,
//      alpha = exp(m_before - m), p = exp(s - m), sum = fma(sum, alpha, Σ p) with Σ in four strands by the key's number in
//      the block modulo four, (0 + 1) + (2 + 3)
//   5. x[e] = fma(p, v[e], x[e]) from 0 for the keys of the block in ascending order, mix[e] = fma(mix[e], alpha, x[e])
//   6. after `split` keys, counted from the origin: mix / sum, and total = merge(total, part) in ascending order
//   7. the sink is merged last, into output and log-sum-exp only
// Forbidden pairs have p = 0 and finite stand-ins for k and v; adding them changes nothing, so skipping them is free.
#pragma once
#include "tile.hpp"

namespace {

template <class T> struct Session {
  qkv_call *call;
  int64_t heads, lanes, block_rows;
  // Row tiles: tile t of batch n begins at cut[first[n] + t]; lists are shared (first null) when origins are.
  int64_t *cut, *first;
  int64_t shared_tiles;
  // spread: tasks before tile x of all batches' tiles, and its first split.
  int64_t *before, *split0;
  int64_t tiles, tasks, merges;
  // spread: states of the parts.
  T *part_max, *part_sum, *part_mix;
  uint8_t *part_flag;
  char *scratch;
  size_t scratch_bytes;
  int64_t next, stop;  // shared by the threads
  bool merging, by_tiles;
  int64_t blocks, threads;

  int64_t tiles_before(int64_t n) const { return first ? first[n] : n * shared_tiles; }
  int64_t tiles_of(int64_t n) const { return first ? first[n + 1] - first[n] : shared_tiles; }
  int64_t row_begin(int64_t n, int64_t t) const { return cut[(first ? first[n] : 0) + t]; }
  int64_t row_end(int64_t n, int64_t t) const { return t + 1 < tiles_of(n) ? row_begin(n, t + 1) : call->L; }
};

// Largest x with base[x] <= value; base ascends and base[0] = 0.
QKV_INLINE int64_t find_last(const int64_t *base, int64_t count, int64_t value) {
  int64_t low = 0, high = count;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (base[middle] <= value)
      low = middle;
    else
      high = middle;
  }
  return low;
}

template <class T> int64_t batch_of(const Session<T> &s, int64_t tile) {
  return s.first ? find_last(s.first, s.call->N, tile) : tile / s.shared_tiles;
}

// Asks the caller whether to go on; all threads hear of the answer.
template <class T> int poll_session(void *context) {
  Session<T> &s = *(Session<T> *)context;
  if (!s.call->poll || !s.call->poll(s.call->poll_context)) return 0;
  __atomic_store_n(&s.stop, int64_t(1), __ATOMIC_RELAXED);
  return 1;
}

template <class T> bool stopped(Session<T> &s, int worker) {
  if (__atomic_load_n(&s.stop, __ATOMIC_RELAXED)) return true;
  if (worker != 0) return false;
  const bool stop = poll_session<T>(&s);
  if (s.by_tiles) shape_tiles();  // what ran meanwhile may have had tiles of its own
  return stop;
}

// Row tiles of batch n; with a null list they are only counted.
inline int64_t cut_rows(const qkv_call *call, int64_t n, int64_t *list) {
  int64_t count = 0;
  for (int64_t i = 0, rows = 0; i < call->L; ++i) {
    if (i == 0 || rows == call->tile_rows || (call->origin && origin_of(call, n, i) != origin_of(call, n, i - 1))) {
      if (list) list[count] = i;
      ++count, rows = 0;
    }
    ++rows;
    if (!call->origin) {  // no need to look at every row
      const int64_t skip = least(call->tile_rows - rows, call->L - 1 - i);
      rows += skip, i += skip;
    }
  }
  return count;
}

template <class T> void bind_work(Work<T> &w, const Session<T> &s, int worker) {
  w.call = s.call;
  w.heads = s.heads, w.tile_rows = least(s.call->tile_rows, s.call->L), w.lanes = s.lanes, w.block_rows = s.block_rows;
  w.scale = T(s.call->scale), w.softcap = usable_softcap<T>(s.call->softcap);
  Arena arena = {s.scratch ? s.scratch + size_t(worker) * s.scratch_bytes : nullptr, 0, false};
  w.lay_out(&arena);
  if (s.by_tiles) w.tiles.use();
  for (int64_t e = 0; w.tile_mixture && e < s.call->E; ++e) w.zeros[e] = 0;
}

// A pass that asks about the weights goes head by head: so many lanes and keys has its largest tile.
template <class T> void head_by_head(Session<T> &s) {
  constexpr int64_t width = Real<T>::width;
  s.heads = 1;
  s.lanes = (least(s.call->tile_rows, s.call->L) + width - 1) / width * width;
  s.block_rows = least(s.call->block, s.call->S + kTileDepth - 1);
}

// One whose tiles are those of the forward pass.
template <class T> void group_by_group(Session<T> &s, bool *over) {
  head_by_head(s);
  s.heads = s.call->H / s.call->G;
  const int64_t lanes = times(least(s.call->tile_rows, s.call->L), s.heads, over);
  if (lanes > (int64_t(1) << 40)) *over = true;
  s.lanes = (lanes + Real<T>::width - 1) / Real<T>::width * Real<T>::width;
}

// Scratch for so many workers: what a tile needs, and what `more` lays out behind it. Answers 0, or 2 for want of memory.
template <class T, class More> int take_scratch(Session<T> &s, int64_t threads, More more) {
  Work<T> probe = {};
  probe.call = s.call;
  probe.tile_rows = least(s.call->tile_rows, s.call->L), probe.lanes = s.lanes, probe.block_rows = s.block_rows;
  Arena measure = {nullptr, 0, false};
  probe.lay_out(&measure);
  s.by_tiles = probe.tile_scores || probe.tile_mixture;
  more(&measure);
  s.scratch_bytes = measure.used;
  bool over = measure.overflow;
  const int64_t bytes = times(threads, int64_t(measure.used), &over);
  if (over) return 2;
  s.scratch = (char *)qkv_allocate(size_t(bytes));
  return s.scratch ? 0 : 2;
}

// All blocks of the tile at hand, split by split; with `merge` each finished split goes into the total.
template <class T> bool walk(Work<T> &w, Session<T> &s, int worker, bool merge, int64_t *blocks) {
  const auto split_of = [&] { return w.origin + floor_div(w.first - w.origin, w.call->split) * w.call->split; };
  bool some = false;
  w.checked = w.few > 0;
  int64_t stop = next_block(w, 0);
  while (stop != kNone) {
    const int64_t split = split_of();
    open_states(w, w.max, w.sum, w.mix);
    do {
      if (stopped(s, worker)) return false;
      if (!w.few) look_ahead(w, stop);
      visit_block(w);
      ++*blocks;
      stop = next_block(w, stop);
    } while (stop != kNone && split_of() == split);
    if (__builtin_expect(!close_splits(w, split), 0)) {
      w.checked = true;
      for (int64_t r = 0; r < w.rows; ++r) w.row[r].cursor = 0;
      stop = next_block(w, split);
      continue;
    }
    if (merge && some) {
      merge_states(w, w.max, w.sum, w.mix);
    } else if (merge) {
      // The first part is the total: merged with nothing it would be the same.
      exchange(w.max, w.total_max), exchange(w.sum, w.total_sum), exchange(w.mix, w.total_mix);
    }
    some = true;
  }
  if (!some) open_states(w, merge ? w.total_max : w.max, merge ? w.total_sum : w.sum, merge ? w.total_mix : w.mix);
  // What the query brings counts once a key is allowed.
  const Panel &last = w.panel[w.panels - 1];
  for (int64_t i = 0; i < last.lane + last.vectors * Real<T>::width; ++i)
    if (w.lane[i].flag & QKV_ALLOWED) w.lane[i].flag |= w.lane[i].query_flag;
  return true;
}

// The rows and the group that are a task.
struct Place {
  int64_t n, g, row0, rows;
};
template <class T> Place place_of(const Session<T> &s, int64_t task) {
  int64_t n, local;
  const int64_t G = s.call->G;
  if (s.first) {
    n = find_last(s.first, s.call->N, task / G);
    local = task - s.first[n] * G;
  } else {
    n = task / (G * s.shared_tiles), local = task % (G * s.shared_tiles);
  }
  // Late rows first: under a causal mask they have the most keys, and small tasks at the end even out the threads.
  const int64_t tiles = s.tiles_of(n), t = tiles - 1 - local % tiles, row0 = s.row_begin(n, t);
  return {n, local / tiles, row0, s.row_end(n, t) - row0};
}

// Asks for what the task at hand will write and what the next one will read first: its queries and the keys of a block.
template <class T> void look_around(Work<T> &w, const Session<T> &s, const Place &at, const Place *next) {
  const qkv_call *call = s.call;
  w.fetch.clear();
  if (next && call->K > 0) {
    const int64_t first = next->n * call->range_batch + next->row0 * call->K, last = first + (next->rows - 1) * call->K;
    const int64_t low = most(least(call->lo[first], call->lo[last]), 0), rows = least(call->block, least(call->hi[last], call->S) - low);
    const qkv_operand *const both[] = {&call->value, &call->key};
    const int64_t width[] = {call->E, call->D};
    for (int i = 0; i < 2 && rows > 0; ++i)
      w.fetch.add(both[i]->base + both[i]->batch_offset[next->n] + next->g * both[i]->stride[0] + low * both[i]->stride[1],
                  width[i] * element_size(both[i]->dtype), both[i]->stride[1], rows);
    const qkv_operand &q = call->query;
    for (int64_t h = next->g * s.heads; h < (next->g + 1) * s.heads && h < next->g * s.heads + 8; ++h)
      w.fetch.add(q.base + q.batch_offset[next->n] + h * q.stride[0] + next->row0 * q.stride[1], call->D * element_size(q.dtype), q.stride[1], next->rows);
  }
  if (!call->output) return;
  const int64_t row = call->E * element_size(call->query.dtype);
  for (int64_t h = at.g * s.heads; h < (at.g + 1) * s.heads && h < at.g * s.heads + 8; ++h) {
    const int64_t place = call->output_length_first ? (at.n * call->L + at.row0) * call->H + h : (at.n * call->H + h) * call->L + at.row0;
    w.fetch.add((char *)call->output + place * row, row, call->output_length_first ? call->H * row : row, at.rows, true);
  }
}

// A whole tile of one group.
template <class T> void run_tile(Work<T> &w, Session<T> &s, int worker, int64_t task, int64_t *blocks) {
  const Place at = place_of(s, task);
  open_tile(w, at.n, at.g, at.row0, at.rows, 0, s.call->S);
  pack_queries(w);
  const int64_t after = task + s.threads;
  const Place next = place_of(s, after < s.tasks ? after : task);
  look_around(w, s, at, after < s.tasks ? &next : nullptr);
  if (walk(w, s, worker, true, blocks)) finish_tile(w);
}

// One split of a tile.
template <class T> void run_part(Work<T> &w, Session<T> &s, int worker, int64_t task, int64_t *blocks) {
  const int64_t x = find_last(s.before, s.tiles, task), splits = (s.before[x + 1] - s.before[x]) / s.call->G;
  const int64_t n = batch_of(s, x), t = x - s.tiles_before(n), row0 = s.row_begin(n, t);
  const int64_t g = (task - s.before[x]) / splits, split = s.split0[x] + (task - s.before[x]) % splits;
  const int64_t begin = origin_of(s.call, n, row0) + split * s.call->split;
  open_tile(w, n, g, row0, s.row_end(n, t) - row0, begin, begin + s.call->split);
  pack_queries(w);
  if (!walk(w, s, worker, false, blocks)) return;
  const int64_t lanes = s.lanes, E = s.call->E;
  __builtin_memcpy(s.part_max + task * lanes, w.max, size_t(lanes) * sizeof(T));
  __builtin_memcpy(s.part_sum + task * lanes, w.sum, size_t(lanes) * sizeof(T));
  __builtin_memcpy(s.part_mix + task * lanes * E, w.mix, size_t(lanes * E) * sizeof(T));
  for (int64_t i = 0; i < w.rows * w.heads; ++i) s.part_flag[task * lanes + i] = w.lane[i].flag;
}

// The parts of a tile of one group, in ascending order.
template <class T> void run_merge(Work<T> &w, Session<T> &s, int64_t task) {
  const int64_t G = s.call->G, x = task / G, g = task % G, n = batch_of(s, x), t = x - s.tiles_before(n);
  const int64_t row0 = s.row_begin(n, t), splits = (s.before[x + 1] - s.before[x]) / G;
  open_tile(w, n, g, row0, s.row_end(n, t) - row0, 0, s.call->S);
  open_states(w, w.total_max, w.total_sum, w.total_mix);
  for (int64_t split = 0; split < splits; ++split) {
    const int64_t part = s.before[x] + g * splits + split;
    merge_states(w, s.part_max + part * s.lanes, s.part_sum + part * s.lanes, s.part_mix + part * s.lanes * s.call->E);
    for (int64_t i = 0; i < w.rows * w.heads; ++i) w.lane[i].flag |= s.part_flag[part * s.lanes + i];
  }
  finish_tile(w);
}

template <class T> void run_worker(void *context, int worker) {
  Session<T> &s = *(Session<T> *)context;
  Work<T> w = {};
  bind_work(w, s, worker);
  int64_t blocks = 0, task;
  const int64_t tasks = s.merging ? s.merges : s.tasks;
  while ((task = __atomic_fetch_add(&s.next, int64_t(1), __ATOMIC_RELAXED)) < tasks) {
    if (stopped(s, worker)) break;
    if (s.merging)
      run_merge(w, s, task);
    else if (s.before)
      run_part(w, s, worker, task, &blocks);
    else
      run_tile(w, s, worker, task, &blocks);
  }
  __atomic_fetch_add(&s.blocks, blocks, __ATOMIC_RELAXED);
}

// Counts the splits between the first and the last key of each tile.
template <class T> void plan_splits(Session<T> &s) {
  const qkv_call *call = s.call;
  int64_t total = 0;
  for (int64_t n = 0; n < call->N; ++n)
    for (int64_t t = 0; t < s.tiles_of(n); ++t) {
      const int64_t x = s.tiles_before(n) + t, row0 = s.row_begin(n, t), origin = origin_of(call, n, row0);
      int64_t low = kNone, high = 0;
      for (int64_t i = row0; i < s.row_end(n, t); ++i)
        for (int64_t k = 0; k < call->K; ++k) {
          const int64_t at = n * call->range_batch + i * call->K + k;
          const int64_t from = most(call->lo[at], 0), to = least(call->hi[at], call->S);
          if (from < to) low = least(low, from), high = most(high, to);
        }
      s.before[x] = total, s.split0[x] = 0;
      if (low >= high) continue;
      s.split0[x] = floor_div(low - origin, call->split);
      total += (floor_div(high - 1 - origin, call->split) - s.split0[x] + 1) * call->G;
    }
  s.before[s.tiles] = s.tasks = total;
}

template <class T> int drive(Session<T> &s, int64_t tasks) {
  s.next = 0;
  const int threads = int(least(least(s.call->threads, tasks), 1024));
  s.threads = threads;
  if (qkv_parallel(threads < 1 ? 1 : threads, run_worker<T>, &s, poll_session<T>, &s)) s.stop = 1;
  return s.stop ? 1 : 0;
}

// The list of row tiles; 0, or 2 if there is no memory for it.
template <class T> int cut_tiles(Session<T> &s) {
  const qkv_call *call = s.call;
  bool over = false;
  const int64_t lists = call->origin && call->origin_batch ? call->N : 1;
  int64_t cuts = 0;
  for (int64_t n = 0; n < lists; ++n) cuts += cut_rows(call, n, nullptr);
  s.cut = (int64_t *)qkv_allocate(size_t(cuts) * 8);
  if (!s.cut) return 2;
  if (lists > 1) {
    s.first = (int64_t *)qkv_allocate(size_t(call->N + 1) * 8);
    if (!s.first) return 2;
  }
  cuts = 0;
  for (int64_t n = 0; n < lists; ++n) {
    if (s.first) s.first[n] = cuts;
    cuts += cut_rows(call, n, s.cut + cuts);
  }
  if (s.first) s.first[call->N] = cuts;
  s.shared_tiles = cuts;
  s.tiles = s.first ? cuts : times(call->N, cuts, &over);
  return over ? 2 : 0;
}

template <class T> int attend_in(Session<T> &s) {
  qkv_call *call = s.call;
  bool over = false;
  if (const int code = cut_tiles(s)) return code;
  s.tasks = s.merges = times(s.tiles, call->G, &over);

  s.heads = call->H / call->G;
  const int64_t width = Real<T>::width;
  s.lanes = (times(least(call->tile_rows, call->L), s.heads, &over) + width - 1) / width * width;
  s.block_rows = least(call->block, call->S + kTileDepth - 1);
  if (over || s.lanes > (int64_t(1) << 40)) return 2;
  if (call->spread) {
    s.before = (int64_t *)qkv_allocate(size_t(s.tiles + 1) * 8);
    s.split0 = (int64_t *)qkv_allocate(size_t(s.tiles) * 8);
    if (!s.before || !s.split0) return 2;
    plan_splits(s);
    Arena measure = {nullptr, 0, false};
    const int64_t states = times(s.tasks, s.lanes, &over);
    measure.take<T>(times(states, call->E, &over));
    if (over || measure.overflow) return 2;
    s.part_max = (T *)qkv_allocate(size_t(states) * sizeof(T));
    s.part_sum = (T *)qkv_allocate(size_t(states) * sizeof(T));
    s.part_mix = (T *)qkv_allocate(size_t(states * call->E) * sizeof(T));
    s.part_flag = (uint8_t *)qkv_allocate(size_t(states));
    if (!s.part_max || !s.part_sum || !s.part_mix || !s.part_flag) return 2;
  }

  const int64_t threads = most(1, least(least(call->threads, most(s.tasks, s.merges)), 1024));
  if (over || take_scratch(s, threads, [](Arena *) {})) return 2;

  if (drive(s, s.tasks)) return 1;
  if (call->spread) {
    s.merging = true;
    if (drive(s, s.merges)) return 1;
  }
  call->blocks_touched = s.blocks;
  return 0;
}

template <class T> int attend(qkv_call *call) {
  call->status_any = 0, call->status_all = 0xff, call->blocks_touched = 0;
  if (call->N == 0 || call->L == 0) {
    call->status_all = 0;
    return 0;
  }
  Session<T> s = {};
  s.call = call;
  const int code = attend_in(s);
  void *const owned[] = {s.cut, s.first, s.before, s.split0, s.part_max, s.part_sum, s.part_mix, s.part_flag, s.scratch};
  for (void *memory : owned) qkv_release(memory);
  return code;
}

}  // namespace

// QKV_LEVEL_ENTRY is the one name this translation unit exports.
extern "C" int QKV_LEVEL_ENTRY(qkv_call *call) {
  return call->query.dtype == QKV_F64 ? attend<double>(call) : attend<float>(call);
}
