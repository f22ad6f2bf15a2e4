// What single keys put into a row's output, and what it would be without them: the scores once more, by the panels of the
// forward pass, then turned so that lanes are keys, as rows of the answers lie. With p = exp(s - base) and o the output:
//   weight = p / whole, norm = weight |v|, share = weight (v·o/|o|) / |o|: the product as in `scores_of`, e ascending;
//   without - o = -p / (whole - p) (v - o), and its length |v - o| with squares added up with e ascending.
// That closed form loses whatever whole - p does: of a key that has more than half of the row (there is one at most) the
// row is mixed anew without it, by the forward pass's own steps. Every pair depends on its row and key alone, vectors
// that are very long or short go one by one in double and scaled, and so no tile, thread or run changes a bit.
// Lanes are rows of all heads of a group.
#pragma once
#include "../shares.h"
#include "attend.hpp"
#include "distance.hpp"

namespace {

template <class T> struct Sharing {
  Session<T> session;  // its tiles, threads and scratch; tasks are our own
  qkv_shares *ask;
  int64_t runs;        // of keys
};

// One worker's scratch beside Work. A strip is two vectors of keys, counted from the block's first.
template <class T> struct Strips {
  static constexpr int width = Real<T>::width;
  static constexpr int64_t wide = 2 * width;
  int64_t pitch;              // keys of the largest block, whole strips
  T *turned;                  // [lanes of a panel][pitch]: scores, -inf where there is no pair
  T *columns;                 // [strip][E][wide]: values
  T *size;                    // [pitch] |v|
  uint8_t *odd_key;           // [pitch]: that is neither 0 nor of an ordinary size
  bool any_odd;
  T *output, *toward;         // [lanes][E] o and o / |o|
  T *length, *by;             // [lanes] |o|, and 1 over it
  uint8_t *odd_row, *lost;    // [lanes]
  int64_t *count, *place;     // [lanes]: keys of the row, and the sum of their numbers
  T *along, *apart;           // [lanes of a panel][wide]
  T *nothing;                 // [lanes of a panel] -inf
  int64_t *left_out;          // [lanes]: the key that a lane leaves out, or -1

  void lay_out(Arena *arena, const qkv_shares *ask, int64_t lanes, int64_t block_rows) {
    bool over = false;
    const int64_t E = ask->call.E;
    pitch = (block_rows + wide - 1) / wide * wide;
    turned = arena->take<T>(times(pitch, wide, &over)), columns = arena->take<T>(times(pitch, E, &over));
    size = arena->take<T>(pitch), odd_key = arena->take<uint8_t>(pitch);
    output = arena->take<T>(times(lanes, E, &over)), toward = arena->take<T>(times(lanes, E, &over));
    length = arena->take<T>(lanes), by = arena->take<T>(lanes), odd_row = arena->take<uint8_t>(lanes), lost = arena->take<uint8_t>(lanes);
    count = arena->take<int64_t>(lanes), place = arena->take<int64_t>(lanes), left_out = arena->take<int64_t>(lanes);
    along = arena->take<T>(wide * wide), apart = arena->take<T>(wide * wide), nothing = arena->take<T>(wide);
    if (over) arena->overflow = true;
    if (arena->base && !arena->overflow)
      for (int64_t i = 0; i < wide; ++i) nothing[i] = -Real<T>::infinity;
  }
};

// Where row and head of a lane stand in answers (N, H, L).
template <class T> int64_t number_of(const Work<T> &w, int64_t lane) {
  return (w.n * w.call->H + w.lane[lane].head) * w.call->L + w.row0 + w.lane[lane].row;
}

template <class T> void open_rows(Work<T> &w, Strips<T> &x, const qkv_shares *ask) {
  const int64_t E = w.call->E, used = w.rows * w.heads;
  const Panel &last = w.panel[w.panels - 1];
  for (int64_t i = 0; i < last.lane + last.vectors * Real<T>::width; ++i) {
    const int64_t at = number_of(w, least(i, used - 1));
    const T whole = ((const T *)ask->whole)[at], *const from = (const T *)ask->output + at * E;
    x.lost[i] = whole != whole;
    // exp is for what is not above the maximum, which a lost row has none of: all its weights are 0 until it is spoiled.
    w.max[i] = x.lost[i] ? Real<T>::infinity : ((const T *)ask->base)[at], w.sum[i] = x.lost[i] ? T(1) : whole;
    T *const o = x.output + i * E, *const toward = x.toward + i * E;
    for (int64_t e = 0; e < E; ++e) o[e] = x.lost[i] ? T(0) : from[e];
    const Length length = length_of(o, 1, E);
    x.length[i] = T(__builtin_ldexp(length.root, length.exponent));
    x.by[i] = 1 / x.length[i];
    x.odd_row[i] = length.root > 0 && !(x.length[i] >= kShort<T> && x.length[i] <= kLong<T>);
    for (int64_t e = 0; e < E; ++e)
      toward[e] = length.root > 0 ? T(shrunk(o[e], length.exponent) / length.root) : T(0);
  }
}

// The block's values as columns, and their lengths: squares are added up in two strands, of even e and of odd.
template <class T> void open_values(Work<T> &w, Strips<T> &x) {
  constexpr int width = Real<T>::width;
  constexpr int64_t wide = Strips<T>::wide;
  const int64_t E = w.call->E, whole = E / width * width, keys = w.end - w.begin;
  const T *const value = w.value_rows + w.begin * E;
  x.any_odd = false;
  for (int64_t j = 0; j < (keys + wide - 1) / wide * wide; j += width) {
    T *const to = x.columns + j / wide * wide * E + j % wide;
    if (j >= keys) {  // the second half of a strip, which is computed with and says nothing
      for (int64_t e = 0; e < E; ++e) store(to + e * wide, Vec<T>{});
      continue;
    }
    const char *row[width];
    for (int i = 0; i < width; ++i) row[i] = (const char *)(value + least(j + i, keys - 1) * E);
    for (int64_t e = 0; e < whole; e += width) transpose<T, Plain<T>>(row, e * int64_t(sizeof(T)), to + e * wide, wide);
    for (int64_t e = whole; e < E; ++e)
      for (int i = 0; i < width; ++i) to[e * wide + i] = ((const T *)row[i])[e];
    Vec<T> even = {}, odd = {};
    for (int64_t e = 0; e < E / 2 * 2; e += 2) {
      const Vec<T> a = load(to + e * wide), b = load(to + (e + 1) * wide);
      even = fma(a, a, even), odd = fma(b, b, odd);
    }
    if (E % 2) even = fma(load(to + (E - 1) * wide), load(to + (E - 1) * wide), even);
    const Vec<T> size = root<T>(even + odd);
    store(x.size + j, size);
    const bool plain = !any<T>(~((size >= all<T>(kShort<T>)) & (size <= all<T>(kLong<T>))));
    for (int i = 0; i < width; ++i) x.odd_key[j + i] = 0;
    for (int64_t i = 0; !plain && i < width && j + i < keys; ++i) {
      if (size[i] >= kShort<T> && size[i] <= kLong<T>) continue;
      const Length length = length_of(value + (j + i) * E, 1, E);
      x.size[j + i] = T(__builtin_ldexp(length.root, length.exponent));
      x.odd_key[j + i] = length.root > 0, x.any_odd |= length.root > 0;
    }
  }
}

// Of every lane: how many keys it may read, and the sum of their numbers.
template <class T, int N> void count_keys(const Work<T> &w, const Panel &p, bool masked, Strips<T> &x) {
  constexpr int width = Real<T>::width, W = N * width;
  if (!masked) {
    const int64_t keys = p.end - p.begin, sum = keys == 1 ? w.first + p.begin : 0;
    for (int i = 0; i < W; ++i) x.count[p.lane + i] += keys, x.place[p.lane + i] += sum;
    return;
  }
  for (int v = 0; v < N; ++v) {
    IVec<T> many = {}, sum = {};
    for (int64_t j = p.begin; j < p.end; ++j) {
      const IVec<T> mask = load_int<T>(w.mask + j * W + v * width);
      many -= mask, sum += mask & all_int<T>(typename Real<T>::Int(j));
    }
    for (int i = 0; i < width; ++i) {
      const int64_t lane = p.lane + v * width + i;
      x.count[lane] += many[i], x.place[lane] += many[i] == 1 ? w.first + sum[i] : 0;
    }
  }
}

// The panel's scores as rows of keys; -inf where the panel has none.
template <class T, int N> void turn_scores(const Work<T> &w, const Panel &p, Strips<T> &x) {
  constexpr int width = Real<T>::width, W = N * width;
  for (int64_t j = (p.begin - w.begin) / width * width; j < p.end - w.begin; j += width) {
    const char *from[width];
    for (int i = 0; i < width; ++i) {
      const int64_t key = w.begin + j + i;
      from[i] = (const char *)(key >= p.begin && key < p.end ? w.score + key * W : x.nothing);
    }
    for (int v = 0; v < N; ++v)
      transpose<T, Plain<T>>(from, v * width * int64_t(sizeof(T)), x.turned + v * width * x.pitch + j, x.pitch);
  }
}

// A vector of answers; of those past the block's last key none.
template <class T> QKV_INLINE void put(void *array, int64_t at, Vec<T> x, int64_t room) {
  if (!array) return;
  T *const to = (T *)array + at;
  if (__builtin_expect(room >= Real<T>::width, 1))
    store(to, x);
  else
    for (int64_t i = 0; i < room; ++i) to[i] = x[i];
}

// A row's allowed pairs where it has no answer.
template <class T, int N> __attribute__((noinline)) void spoil_row(const Work<T> &w, const Panel &p, bool masked, int i, const qkv_shares *ask) {
  constexpr int W = N * Real<T>::width;
  const int64_t E = w.call->E, row = number_of(w, p.lane + i) * w.call->S + w.first;
  void *const answers[] = {ask->weight, ask->norm, ask->share, ask->relative};
  for (int64_t j = p.begin; j < p.end; ++j) {
    if (masked && !w.mask[j * W + i]) continue;
    for (void *array : answers)
      if (array) ((T *)array)[row + j] = T(__builtin_nan(""));
    if (T *const to = (T *)ask->vectors)
      for (int64_t e = 0; e < E; ++e) to[(row + j) * E + e] = T(__builtin_nan(""));
  }
}

// without - o of one pair; `by` is -p / (whole - p).
template <class T> void put_vector(const T *value, const T *output, T by, int64_t E, T *to, bool odd) {
  constexpr int width = Real<T>::width;
  int64_t e = 0;
  if (!odd)
    for (; e + width <= E; e += width) store(to + e, (load(value + e) - load(output + e)) * all<T>(by));
  for (; e < E; ++e) to[e] = scaled_gap<T>(by, value[e], output[e]);
}

// One vector of keys, from `j` of the block on, and one lane.
template <class T> QKV_INLINE void share_vector(Work<T> &w, Strips<T> &x, const qkv_shares *ask, int64_t lane, int64_t j, const T *score, const T *along, const T *apart) {
  constexpr int width = Real<T>::width;
  const int64_t E = w.call->E, room = w.end - w.begin - j, key = w.first + w.begin + j, row = number_of(w, lane), at = row * w.call->S + key;
  const Vec<T> whole = all<T>(w.sum[lane]), mass = exponential<T>(load(score + j) - all<T>(w.max[lane]));
  const Vec<T> weight = mass / whole, by = all<T>(x.by[lane]);
  const IVec<T> some = mass > Vec<T>{};
  const bool odd = x.any_odd || x.odd_row[lane];
  put<T>(ask->weight, at, weight, room);
  if (ask->norm) put<T>(ask->norm, at, select<T>(some, weight * load(x.size + j), Vec<T>{}), room);
  if (ask->share) put<T>(ask->share, at, select<T>(some, weight * (load(along) * by), Vec<T>{}), room);
  const auto is_odd = [&](int i) { return x.odd_row[lane] || x.odd_key[j + i]; };
  const T *const value = w.value_rows + (w.begin + j) * E, *const output = x.output + lane * E;
  if (__builtin_expect(odd, 0))
    for (int i = 0; i < width && i < room; ++i) {
      if (!some[i] || !is_odd(i)) continue;
      if (ask->norm) ((T *)ask->norm)[at + i] = scaled_ratio<T>(weight[i], length_of(value + i * E, 1, E), {1, 0});
      if (ask->share) ((T *)ask->share)[at + i] = share_of<T>(weight[i], value + i * E, output, E);
    }
  if (!ask->heavy) return;
  // What is left of the whole; nothing may be, and then the key is a heavy one, whose answer comes later.
  const IVec<T> light = some & (mass + mass <= whole), heavy = some & ~light;
  const Vec<T> odds = select<T>(light, mass / select<T>(light, whole - mass, all<T>(1)), Vec<T>{});
  if (ask->relative) put<T>(ask->relative, at, select<T>(light, odds * (root<T>(load(apart)) * by), Vec<T>{}), room);
  if (__builtin_expect(any<T>(heavy), 0))
    for (int i = 0; i < width && i < room; ++i)
      if (heavy[i] && !x.lost[lane]) __atomic_store_n(ask->heavy + row, key + i, __ATOMIC_RELAXED);
  if (__builtin_expect(odd && ask->relative && x.length[lane] > 0, 0)) {
    const Length of_output = length_of(output, 1, E);
    for (int i = 0; i < width && i < room; ++i)
      if (light[i] && is_odd(i))
        ((T *)ask->relative)[at + i] = scaled_ratio<T>(odds[i], gap_of(value + i * E, 1, output, E), of_output);
  }
  if (ask->vectors)
    for (int i = 0; i < width && i < room; ++i)
      if (light[i]) put_vector<T>(value + i * E, output, -odds[i], E, (T *)ask->vectors + (at + i) * E, odd && is_odd(i));
}

template <class T, int N> void share_panel(Work<T> &w, const Panel &p, Strips<T> &x, const qkv_shares *ask) {
  constexpr int width = Real<T>::width, W = N * width;
  constexpr int64_t wide = Strips<T>::wide;
  Vec<T> top[N];
  bool masked;
  if (!score_panel<T, N>(w, p, masked, top)) return;
  const int64_t E = w.call->E, used = least(W, w.rows * w.heads - p.lane), begin = p.begin - w.begin, end = p.end - w.begin;
  const Spans<2> rows = {{0, 0}, {used, used}};
  if (ask->count) count_keys<T, N>(w, p, masked, x);
  turn_scores<T, N>(w, p, x);
  for (int64_t from = begin / wide * wide; from < end; from += wide) {
    const T *const columns = x.columns + from * E;
    if (ask->share) scores_of<T, 2>(rows, E, x.toward + p.lane * E, columns, x.along, w.fetch);
    if (ask->relative) squared_gaps<T>(used, E, x.output + p.lane * E, columns, x.apart);
    for (int64_t i = 0; i < used; ++i)
      for (int64_t j = most(from, begin / width * width); j < least(from + wide, end); j += width)
        share_vector<T>(w, x, ask, p.lane + i, j, x.turned + i * x.pitch, x.along + i * wide + j - from, x.apart + i * wide + j - from);
  }
  for (int i = 0; i < used; ++i)
    if (__builtin_expect(x.lost[p.lane + i], 0)) spoil_row<T, N>(w, p, masked, i, ask);
}

// Rows of a tile and a run of keys.
template <class T> void share_tile(Work<T> &w, Sharing<T> &q, Strips<T> &x, int worker, int64_t task) {
  Session<T> &s = q.session;
  qkv_shares *ask = q.ask;
  const qkv_call *call = s.call;
  const Place tile = place_of(s, task / q.runs);
  const int64_t first = task % q.runs * ask->run;
  open_tile(w, tile.n, tile.g, tile.row0, tile.rows, first, least(first + ask->run, call->S));
  w.few = 0;
  bool ready = false;
  const int64_t used = w.rows * w.heads;
  for (int64_t from = 0, stop; (stop = next_block(w, from)) != kNone; from = stop) {
    if (stopped(s, worker)) return;
    if (!ready) {
      pack_queries(w), open_rows(w, x, ask), ready = true;
      for (int64_t i = 0; i < s.lanes; ++i) x.count[i] = x.place[i] = 0;
    }
    w.fetch.clear();
    look_ahead(w, stop);
    ready_keys(w);
    w.value_rows = ready_rows(w, call->value, w.value_row(w.first + w.begin), call->E, w.value, 2);
    open_values(w, x);
    for (int64_t k = 0; k < w.panels; ++k) {
      const Panel &p = w.panel[k];
      if (p.begin < p.end) with_vectors(p.vectors, [&](auto vectors) { share_panel<T, decltype(vectors)::count>(w, p, x, ask); });
    }
  }
  if (!ready || !ask->count) return;
  for (int64_t i = 0; i < used; ++i) {
    const int64_t at = number_of(w, i);
    __atomic_fetch_add(ask->count + at, x.count[i], __ATOMIC_RELAXED);
    __atomic_fetch_add(ask->place + at, x.place[i], __ATOMIC_RELAXED);
  }
}

// What a visit does to a row that leaves a key out (panel.hpp): its score is that of a forbidden pair.
template <class T> struct Leaving : Unnoted {
  static constexpr bool everything = true;
  template <int N> void scored(Work<T> &w, const Panel &p, Vec<T> *top) {
    constexpr int width = Real<T>::width, W = N * width;
    for (int i = 0; i < W; ++i) {
      const int64_t j = w.left_out[p.lane + i] - w.first;
      if (w.left_out[p.lane + i] < 0 || j < p.begin || j >= p.end) continue;
      w.score[j * W + i] = -Real<T>::infinity;
      T best = -Real<T>::infinity;
      for (int64_t k = p.begin; k < p.end; ++k) best = w.score[k * W + i] > best ? w.score[k * W + i] : best;
      top[i / width][i % width] = best;
    }
  }
};

// Rows of a tile in which a key has more than half: mixed anew without it.
template <class T> void leave_out(Work<T> &w, Sharing<T> &q, Strips<T> &x, int worker, int64_t task) {
  Session<T> &s = q.session;
  qkv_shares *ask = q.ask;
  const qkv_call *call = s.call;
  const Place tile = place_of(s, task);
  const int64_t E = call->E;
  open_tile(w, tile.n, tile.g, tile.row0, tile.rows, 0, call->S);
  w.few = 0;
  const int64_t used = w.rows * w.heads;
  bool some = false;
  for (int64_t i = 0; i < s.lanes; ++i) {
    x.left_out[i] = i < used ? ask->heavy[number_of(w, i)] : -1;
    some |= x.left_out[i] >= 0;
  }
  if (!some) return;
  w.left_out = x.left_out;
  pack_queries(w);
  open_states(w, w.total_max, w.total_sum, w.total_mix);
  Leaving<T> leaving;
  int64_t split_first = kNone;
  const auto finish = [&] { close_splits(w, split_first), merge_states(w, w.max, w.sum, w.mix); };
  for (int64_t from = 0, stop; (stop = next_block(w, from)) != kNone; from = stop) {
    if (stopped(s, worker)) return;
    const int64_t split = w.origin + floor_div(w.first - w.origin, call->split) * call->split;
    if (split != split_first) {
      if (split_first != kNone) finish();
      open_states(w, w.max, w.sum, w.mix);
      split_first = split;
    }
    pack_block(w);
    for (int64_t k = 0; k < w.panels; ++k) {
      const Panel &p = w.panel[k];
      if (p.begin < p.end) with_vectors(p.vectors, [&](auto vectors) { visit<T, decltype(vectors)::count>(w, p, leaving); });
    }
  }
  if (split_first != kNone) finish();
  for (int64_t k = 0; k < w.panels; ++k)
    for (int64_t i = 0; i < w.panel[k].vectors * Real<T>::width; ++i) {
      const int64_t lane = w.panel[k].lane + i, step = w.panel[k].vectors * Real<T>::width;
      if (x.left_out[lane] < 0) continue;
      const int64_t row = number_of(w, lane), at = row * call->S + x.left_out[lane];
      T *const mix = w.total_mix + w.panel[k].lane * E + i;
      const T *const output = (const T *)ask->output + row * E, max = w.total_max[lane], sum = w.total_sum[lane];
      if (call->sink) {
        const T sink = within_range<T>(call->sink[w.lane[lane].head]), both = max > sink ? max : sink;
        const T mass = sum * exponential1<T>(max - both), share = mass / (mass + exponential1<T>(sink - both));
        for (int64_t e = 0; e < E; ++e) mix[e * step] *= share;
      }
      if (ask->relative) ((T *)ask->relative)[at] = scaled_ratio<T>(1, gap_of(mix, step, output, E), length_of(output, 1, E));
      if (ask->vectors)
        for (int64_t e = 0; e < E; ++e) ((T *)ask->vectors)[at * E + e] = scaled_gap<T>(1, mix[e * step], output[e]);
    }
}

template <class T> void shares_worker(void *context, int worker) {
  Sharing<T> &q = *(Sharing<T> *)context;
  Session<T> &s = q.session;
  Work<T> w = {};
  Strips<T> x = {};
  bind_work(w, s, worker);
  Arena arena = {s.scratch + size_t(worker) * s.scratch_bytes, 0, false};
  w.lay_out(&arena);
  x.lay_out(&arena, q.ask, s.lanes, s.block_rows);
  int64_t task;
  while ((task = __atomic_fetch_add(&s.next, int64_t(1), __ATOMIC_RELAXED)) < s.tasks) {
    if (stopped(s, worker)) break;
    if (s.merging)
      leave_out(w, q, x, worker, task);
    else
      share_tile(w, q, x, worker, task);
  }
}

template <class T> int shares_drive(Sharing<T> &q, int64_t tasks, bool merging) {
  Session<T> &s = q.session;
  s.next = 0, s.tasks = tasks, s.merging = merging;
  const int threads = int(least(least(s.call->threads, tasks), 1024));
  if (qkv_parallel(threads < 1 ? 1 : threads, shares_worker<T>, &q, poll_session<T>, &s)) s.stop = 1;
  return s.stop ? 1 : 0;
}

template <class T> int shares_in(Sharing<T> &q) {
  Session<T> &s = q.session;
  qkv_call *call = s.call;
  bool over = false;
  if (const int code = cut_tiles(s)) return code;
  group_by_group(s, &over);
  q.runs = most(1, (call->S + q.ask->run - 1) / q.ask->run);
  const int64_t tiles = times(s.tiles, call->G, &over), tasks = times(tiles, q.runs, &over);
  const int64_t threads = most(1, least(least(call->threads, tasks), 1024));
  Strips<T> strips = {};
  if (over || take_scratch(s, threads, [&](Arena *measure) { strips.lay_out(measure, q.ask, s.lanes, s.block_rows); })) return 2;
  if (shares_drive(q, tasks, false)) return 1;
  return q.ask->heavy ? shares_drive(q, tiles, true) : 0;
}

template <class T> int shares(qkv_shares *ask) {
  if (ask->call.N == 0 || ask->call.L == 0) return 0;
  Sharing<T> q = {};
  q.ask = ask, q.session.call = &ask->call;
  const int code = shares_in(q);
  void *const owned[] = {q.session.cut, q.session.first, q.session.scratch};
  for (void *memory : owned) qkv_release(memory);
  return code;
}

}  // namespace

// QKV_LEVEL_SHARES is the name under which this translation unit exports it.
extern "C" int QKV_LEVEL_SHARES(qkv_shares *ask) {
  return ask->call.query.dtype == QKV_F64 ? shares<double>(ask) : shares<float>(ask);
}
