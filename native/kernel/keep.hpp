// Attention and answers about its weights in one pass. A weight needs its row's last maximum and sum, which nobody knows
// before the last key; so
//   entropy is a third number of the running state, Σ p (s - m), rescaled and merged as the sum is;
//   the largest weights are found as the largest scores, one more than asked for: where that one's weight could be among them
//   after rounding, the tile's scores are computed again and weights compared;
//   what a key receives is added up at the end of a tile from its weights, kept as they were with the maximum they were
//   taken against. Tiles of one head follow each other in a fixed number of strands, whose sums are added in order.
// Lanes are rows of one query head.
#pragma once
#include "../keep.h"
#include "answers.hpp"

namespace {

// Where the work on one head's tiles is cut, for `received`: enough pieces for many threads.
constexpr int64_t kStrandsOfAll = 128, kStrandsOfOne = 16;

template <class T> struct Keeping {
  Session<T> session;
  qkv_keep *ask;
  int64_t strands;  // of tiles of each head; 0: every tile by itself
  T *strand_sum;    // [n][h][strand][S]
};

// Weights kept of one panel and block: keys [begin, end) from `first`, and the maxima they were taken against.
struct Kept {
  int64_t first, begin, end, panel, at;
};

// One worker's scratch beside Work, and what `visit` tells it (panel.hpp).
template <class T> struct Noted {
  typedef typename Real<T>::Int Int;
  static constexpr int width = Real<T>::width;
  static constexpr bool everything = true;
  qkv_keep *ask;
  int64_t count;  // of the list, one more than asked for; 0: none
  bool keeps;     // weights, for `received`
  T *entropy, *total_entropy;  // [lanes]
  T *score, *least;            // [vector of lanes][count][lane], falling; and for lists that are made again their last
  Int *key;
  T *weights, *maxima, *column;  // kept weights, maxima of each Kept, and one block's sums by lane
  Kept *kept;
  int64_t used, many;
  uint8_t *again;       // [lanes]
  int64_t *keys_again;  // [lanes][count]
  bool seen;
  Vec<T> strand[4];

  void lay_out(Arena *arena, qkv_keep *ask_, int64_t lanes, int64_t block_rows) {
    bool over = false;
    const qkv_call *call = &ask_->call;
    ask = ask_, count = ask_->top_key ? ask_->count + 1 : 0, keeps = ask_->received != nullptr;
    entropy = arena->take<T>(lanes), total_entropy = arena->take<T>(lanes), least = arena->take<T>(lanes);
    const int64_t listed = times(lanes, count, &over);
    score = arena->take<T>(listed), key = arena->take<Int>(listed), again = arena->take<uint8_t>(lanes);
    keys_again = arena->take<int64_t>(listed);
    // A block that begins in the middle of a tile's first keys is one more.
    const int64_t panels = lanes / width, most_kept = keeps ? times(call->S / call->block + 2, panels, &over) : 0;
    // The last panel's scores come as whole tiles, so they may reach as far behind it as in a strip (work.hpp).
    weights = arena->take<T>(keeps ? times(lanes, call->S, &over) + kTileSide * 2 * width : 0);
    maxima = arena->take<T>(times(most_kept, 2 * width, &over)), kept = arena->take<Kept>(most_kept);
    column = arena->take<T>(keeps ? times(block_rows + 2 * width, width, &over) : 0);
    if (over) arena->overflow = true;
  }

  void start(int64_t lanes, int64_t rows) {
    used = many = 0;
    for (int64_t i = 0; i < lanes; ++i) {
      total_entropy[i] = 0;
      // Lanes past the last row repeat it, and list nothing.
      for (int64_t k = 0; k < count; ++k) {
        const int64_t at = (i / width * count + k) * width + i % width;
        score[at] = i < rows ? -Real<T>::infinity : Real<T>::infinity, key[at] = -1;
      }
    }
  }

  // Scores of one key into the lists of a vector of lanes, behind all that are as large: whatever is smaller moves on by one,
  // in all lanes at once and from the last place on, where most lanes change nothing.
  QKV_INLINE Vec<T> list(T *scores, Int *keys, Vec<T> x, Int j) {
    const IVec<T> mine = all_int<T>(j);
    T *at = scores + (count - 1) * width;
    Int *key_at = keys + (count - 1) * width;
    Vec<T> held = load(at);
    for (; at > scores; at -= width, key_at -= width) {
      const Vec<T> ahead = load(at - width), least_of = x < ahead ? x : ahead, now = larger<T>(held, least_of);
      const IVec<T> before = load_int<T>(key_at - width), kept = load_int<T>(key_at);
      store_int<T>(key_at, held >= x ? kept : ahead >= x ? mine : before);
      store(at, now);
      held = ahead;
    }
    const IVec<T> kept = load_int<T>(keys);
    store_int<T>(keys, held >= x ? kept : mine);
    store(scores, larger<T>(held, x));
    return load(scores + (count - 1) * width);
  }

  // What `visit` calls: with the block's scores, for each weight and its logarithm, and once they are added up.
  template <int N> void scored(Work<T> &w, const Panel &p, const Vec<T> *top) {
    seen = true;
    if (!count) return;
    for (int v = 0; v < N; ++v) {
      const int64_t lane = p.lane + v * width;
      T *const scores = score + lane * count;
      Vec<T> last = load(scores + (count - 1) * width);
      if (!any<T>(top[v] > last)) continue;
      const T *s = w.score + v * width;
      for (int64_t j = p.begin; j < p.end; ++j) {
        const Vec<T> x = load(s + j * N * width);
        if (__builtin_expect(any<T>(x > last), 0)) last = list(scores, key + lane * count, x, Int(w.first + j));
      }
    }
  }
  QKV_INLINE void open() { strand[0] = strand[1] = strand[2] = strand[3] = Vec<T>{}; }
  QKV_INLINE void weighed(int which, Vec<T> weight, Vec<T> x) { strand[which] = fma(weight, lowest(x), strand[which]); }
  QKV_INLINE void close(int64_t lane, Vec<T> before, Vec<T> base, Vec<T> shrink, Vec<T> sum) {
    const Vec<T> added = (strand[0] + strand[1]) + (strand[2] + strand[3]);
    store(entropy + lane, fma(shrink, fma(lowest(before - base), sum, load(entropy + lane)), added));
  }

  // Where exp gives 0; so that 0 times the logarithm is 0.
  static QKV_INLINE Vec<T> lowest(Vec<T> x) { return larger<T>(x, all<T>(sizeof(T) == 8 ? T(-746) : T(-104))); }

  // total = merge(total, part) for the third number, before merge_states joins the other two.
  void merge(const Work<T> &w, int64_t lanes) {
    const Vec<T> none = all<T>(-Real<T>::infinity);
    for (int64_t i = 0; i < lanes; i += width) {
      const Vec<T> ma = load(w.total_max + i), mb = load(w.max + i), m = larger<T>(ma, mb), base = m == none ? Vec<T>{} : m;
      const Vec<T> a = fma(lowest(ma - base), load(w.total_sum + i), load(total_entropy + i));
      const Vec<T> b = fma(lowest(mb - base), load(w.sum + i), load(entropy + i));
      store(total_entropy + i, fma(exponential<T>(ma - base), a, exponential<T>(mb - base) * b));
    }
  }
};

template <class T> int64_t lanes_of(const Work<T> &w) {
  const Panel &last = w.panel[w.panels - 1];
  return last.lane + last.vectors * Real<T>::width;
}

template <class T> void visit_noted(Work<T> &w, Noted<T> &notes) {
  T *const strip = w.score;
  pack_block(w);
  for (int64_t q = 0; q < w.panels; ++q) {
    const Panel &p = w.panel[q];
    if (p.begin >= p.end) continue;
    const int64_t W = p.vectors * Real<T>::width;
    notes.seen = false;
    if (notes.keeps) w.score = notes.weights + notes.used - p.begin * W;  // they stay where they come to be
    with_vectors(p.vectors, [&](auto n) { visit<T, decltype(n)::count>(w, p, notes); });
    if (!notes.keeps || !notes.seen) continue;
    notes.kept[notes.many] = {w.first, p.begin, p.end, q, notes.used};
    for (int64_t i = 0; i < W; ++i) notes.maxima[notes.many * 2 * Real<T>::width + i] = w.max[p.lane + i];
    ++notes.many, notes.used += (p.end - p.begin) * W;
  }
  w.score = strip;
}

// All blocks of the tile at hand, as `walk` does it; false if the call was stopped.
template <class T> bool walk_noted(Work<T> &w, Session<T> &s, Noted<T> &notes, int worker, int64_t *blocks) {
  const int64_t lanes = lanes_of(w);
  int64_t split_first = kNone;
  const auto finish = [&] {
    close_splits(w, split_first);
    notes.merge(w, lanes);
    merge_states(w, w.max, w.sum, w.mix);
  };
  for (int64_t from = 0, stop; (stop = next_block(w, from)) != kNone; from = stop) {
    if (stopped(s, worker)) return false;
    const int64_t split = w.origin + floor_div(w.first - w.origin, w.call->split) * w.call->split;
    if (split != split_first) {
      if (split_first != kNone) finish();
      open_states(w, w.max, w.sum, w.mix);
      for (int64_t i = 0; i < lanes; ++i) notes.entropy[i] = 0;
      split_first = split;
    }
    visit_noted(w, notes);
    ++*blocks;
  }
  if (split_first != kNone) finish();
  for (int64_t i = 0; i < lanes; ++i)
    if (w.lane[i].flag & QKV_ALLOWED) w.lane[i].flag |= w.lane[i].query_flag;
  return true;
}

template <class T> bool is_lost(const Work<T> &w, int64_t lane) {
  const uint8_t flag = w.lane[lane].flag;
  return (flag & (QKV_NONFINITE | QKV_OVERFLOW)) || ((flag & QKV_ALLOWED) && w.total_sum[lane] == 0);
}

// Instead of maximum and sum, what a weight beside the sink is taken against: exp(s - max) / sum.
template <class T> void include_sink(Work<T> &w, int64_t lanes) {
  for (int64_t i = 0; i < lanes; ++i) {
    T max = w.total_max[i], sum = w.total_sum[i];
    if (w.call->sink) {
      const T sink = within_range<T>(w.call->sink[w.lane[i].head]), both = max > sink ? max : sink;
      sum = sum * exponential1<T>(max - both) + exponential1<T>(sink - both), max = both;
    }
    w.max[i] = finite(max) ? max : T(0), w.sum[i] = sum == 0 ? T(1) : sum;
  }
}

// What the keys receive from the rows of the tile, from the weights that were kept; added to `sum`, [S].
template <class T> void add_kept(Work<T> &w, Noted<T> &notes, T *sum) {
  constexpr int width = Real<T>::width;
  constexpr int64_t wide = 2 * width;
  alignas(kAlign) T turned[width * width];
  for (int64_t k = 0, next; k < notes.many; k = next) {
    const int64_t first = notes.kept[k].first;
    int64_t begin = kNone, end = 0;
    for (next = k; next < notes.many && notes.kept[next].first == first; ++next)
      begin = least(begin, notes.kept[next].begin), end = most(end, notes.kept[next].end);
    const int64_t rows = (end - begin + width - 1) / width * width;
    for (int64_t i = 0; i < rows * width; i += width) store(notes.column + i, Vec<T>{});
    for (int64_t e = k; e < next; ++e) {
      const Kept &kept = notes.kept[e];
      const Panel &p = w.panel[kept.panel];
      with_vectors(p.vectors, [&](auto vectors) {
        constexpr int N = decltype(vectors)::count;
        Vec<T> by[N];
        alignas(kAlign) typename Real<T>::Int here[N * width];
        bool every = true;
        for (int i = 0; i < N * width; ++i) {
          const bool there = p.lane + i < w.rows && !is_lost(w, p.lane + i);
          here[i] = there ? -1 : 0;
          every &= there;
        }
        for (int v = 0; v < N; ++v) {
          const int64_t lane = p.lane + v * width;
          const Vec<T> factor =
              exponential<T>(load(notes.maxima + e * wide + v * width) - load(w.max + lane)) / load(w.sum + lane);
          by[v] = select<T>(load_int<T>(here + v * width), factor, Vec<T>{});
        }
        const T *weight = notes.weights + kept.at;
        T *column = notes.column + (kept.begin - begin) * width;
        for (int64_t j = kept.begin; j < kept.end; ++j, weight += N * width, column += width) {
          Vec<T> x = load(column);
          for (int v = 0; v < N; ++v) {
            const Vec<T> one = load(weight + v * width);
            x = fma(every ? one : select<T>(load_int<T>(here + v * width), one, Vec<T>{}), by[v], x);
          }
          store(column, x);
        }
      });
    }
    for (int64_t at = 0; at < rows; at += width) {
      const char *row[width];
      for (int i = 0; i < width; ++i) row[i] = (const char *)(notes.column + (at + i) * width);
      transpose<T, Plain<T>>(row, 0, turned, width);
      Vec<T> all_lanes = load(turned);
      for (int i = 1; i < width; ++i) all_lanes = all_lanes + load(turned + i * width);
      T *const to = sum + first + begin + at;
      for (int i = 0; i < width && begin + at + i < end; ++i) to[i] = to[i] + all_lanes[i];
    }
  }
  // A row without an answer spoils the keys that it may read and no others.
  for (int64_t i = 0; i < w.rows; ++i) {
    if (!is_lost(w, i)) continue;
    const qkv_call *call = w.call;
    const RowKeys &row = w.row[i];
    for (int64_t k = 0; k < row.count; ++k)
      for (int64_t j = row.low(k); j < row.high(k); ++j) {
        if (call->allow.base && !w.lane[i].allow[j * call->allow.stride[2]]) continue;
        if (call->bias.base &&
            read_element<T>(call->bias.dtype, w.lane[i].bias + j * call->bias.stride[2]) == -Real<T>::infinity)
          continue;
        sum[j] = T(__builtin_nan(""));
      }
  }
}

// Writes the list of a row from its scores, largest weight first; false where rounding may have made another order.
template <class T> bool write_top(const Work<T> &w, Noted<T> &notes, int64_t lane, int64_t at) {
  constexpr int width = Real<T>::width;
  const int64_t asked = notes.count - 1;
  int64_t *const to_key = notes.ask->top_key + at * asked;
  T *const to = (T *)notes.ask->top_weight + at * asked;
  const bool lost = is_lost(w, lane);
  if (lost || !(w.lane[lane].flag & QKV_ALLOWED)) {
    for (int64_t k = 0; k < asked; ++k) to_key[k] = -1, to[k] = lost ? T(__builtin_nan("")) : T(0);
    return true;
  }
  if (w.lane[lane].flag & QKV_LOW) return false;  // an allowed score of -inf is on no list
  const int64_t list = lane / width * notes.count * width + lane % width;
  const typename Real<T>::Int *const keys = notes.key + list;
  const T *const scores = notes.score + list;
  T next = 0;
  for (int64_t from = 0; from < notes.count; from += width) {
    alignas(kAlign) T weight[width];
    for (int i = 0; i < width; ++i) weight[i] = from + i < notes.count ? scores[(from + i) * width] : -Real<T>::infinity;
    store(weight, exponential<T>(load(weight) - all<T>(w.max[lane])) / all<T>(w.sum[lane]));
    for (int i = 0; i < width && from + i < notes.count; ++i) {
      const int64_t k = from + i, key = keys[k * width];
      if (k == asked) {
        next = key < 0 ? T(-1) : weight[i];
        break;
      }
      if (key < 0) {
        to_key[k] = -1, to[k] = 0;
        continue;
      }
      int64_t place = k;
      for (; place > 0 && (weight[i] > to[place - 1] || (weight[i] == to[place - 1] && key < to_key[place - 1] - notes.ask->first_key));
           --place)
        to[place] = to[place - 1], to_key[place] = to_key[place - 1];
      to[place] = weight[i], to_key[place] = key + notes.ask->first_key;
    }
  }
  // Scores in falling order have weights in falling order but for the last bits of exp.
  const T last = to[asked - 1];
  return next < 0 || (last > Real<T>::smallest * T(0x1p20) && next < last - last * T(0x1p-20));
}

// The tile's scores once more, and lists by weight for the rows marked.
template <class T> bool list_again(Work<T> &w, Keeping<T> &q, Noted<T> &notes, int worker, int64_t h) {
  const int64_t asked = notes.count - 1, rows = w.rows, lanes = lanes_of(w);
  const int64_t n = w.n, row0 = w.row0;
  Notes<T> lists = {};
  lists.weight = notes.score, lists.key = notes.keys_again, lists.least = notes.least;
  for (int64_t i = 0; i < lanes * asked; ++i) lists.weight[i] = -1, lists.key[i] = -1;
  for (int64_t i = 0; i < lanes; ++i) lists.least[i] = i < rows && notes.again[i] ? T(-1) : Real<T>::infinity;
  open_tile(w, n, h, row0, rows, 0, w.call->S);
  w.g = h / (w.call->H / w.call->G), w.few = 0;
  for (int64_t from = 0, stop; (stop = next_block(w, from)) != kNone; from = stop) {
    if (stopped(q.session, worker)) return false;
    ready_keys(w);
    for (int64_t k = 0; k < w.panels; ++k) {
      const Panel &p = w.panel[k];
      if (p.begin >= p.end) continue;
      with_vectors(p.vectors, [&](auto vectors) {
        constexpr int N = decltype(vectors)::count;
        Vec<T> top[N];
        bool masked;
        if (score_panel<T, N>(w, p, masked, top)) add_top<T, N>(w, p, masked, lists, asked);
      });
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    if (!notes.again[i]) continue;
    const int64_t at = (n * w.call->H + h) * w.call->L + row0 + i;
    for (int64_t k = 0; k < asked; ++k) {
      const int64_t key = lists.key[i * asked + k];
      q.ask->top_key[at * asked + k] = key < 0 ? -1 : key + q.ask->first_key;
      ((T *)q.ask->top_weight)[at * asked + k] = key < 0 ? T(0) : lists.weight[i * asked + k];
    }
  }
  return true;
}

template <class T> void keep_tile(Work<T> &w, Keeping<T> &q, Noted<T> &notes, int worker, int64_t n, int64_t h, int64_t t, T *sum, int64_t *blocks) {
  Session<T> &s = q.session;
  const qkv_call *call = s.call;
  const int64_t row0 = s.row_begin(n, t);
  open_tile(w, n, h, row0, s.row_end(n, t) - row0, 0, call->S);
  w.g = h / (call->H / call->G), w.few = 0;
  pack_queries(w);
  open_states(w, w.total_max, w.total_sum, w.total_mix);
  const int64_t lanes = lanes_of(w), at = (n * call->H + h) * call->L + row0;
  notes.start(lanes, w.rows);
  if (!walk_noted(w, s, notes, worker, blocks)) return;
  finish_tile(w);
  if (T *const to = (T *)q.ask->entropy)
    for (int64_t i = 0; i < w.rows; ++i) {
      const T whole = w.total_sum[i], nats = whole == 0 ? T(0) : log1(whole) - notes.total_entropy[i] / whole;
      to[at + i] = is_lost(w, i) ? T(__builtin_nan("")) : nats < 0 ? T(0) : nats;
    }
  if (!notes.count && !notes.keeps) return;
  include_sink(w, lanes);
  if (notes.keeps) add_kept(w, notes, sum);
  if (!notes.count) return;
  bool some = false;
  for (int64_t i = 0; i < w.rows; ++i) some |= notes.again[i] = !write_top(w, notes, i, at + i);
  if (some) list_again(w, q, notes, worker, h);
}

template <class T> void keep_worker(void *context, int worker) {
  Keeping<T> &q = *(Keeping<T> *)context;
  Session<T> &s = q.session;
  const qkv_call *call = s.call;
  Work<T> w = {};
  Noted<T> notes = {};
  bind_work(w, s, worker);
  Arena arena = {s.scratch + size_t(worker) * s.scratch_bytes, 0, false};
  w.lay_out(&arena);
  notes.lay_out(&arena, q.ask, s.lanes, s.block_rows);
  int64_t blocks = 0, task;
  while ((task = __atomic_fetch_add(&s.next, int64_t(1), __ATOMIC_RELAXED)) < s.tasks) {
    if (stopped(s, worker)) break;
    if (q.strands) {
      const int64_t n = task / (call->H * q.strands), h = task / q.strands % call->H, strand = task % q.strands;
      T *const sum = q.strand_sum + task * call->S;
      for (int64_t j = 0; j < call->S; ++j) sum[j] = 0;
      for (int64_t t = s.tiles_of(n) - 1 - strand; t >= 0; t -= q.strands) keep_tile(w, q, notes, worker, n, h, t, sum, &blocks);
      continue;
    }
    int64_t n, local;
    if (s.first) {
      n = find_last(s.first, call->N, task / call->H);
      local = task - s.first[n] * call->H;
    } else {
      n = task / (call->H * s.shared_tiles), local = task % (call->H * s.shared_tiles);
    }
    const int64_t tiles = s.tiles_of(n);
    keep_tile<T>(w, q, notes, worker, n, local / tiles, tiles - 1 - local % tiles, nullptr, &blocks);
  }
  __atomic_fetch_add(&s.blocks, blocks, __ATOMIC_RELAXED);
}

template <class T> int keep_in(Keeping<T> &q) {
  Session<T> &s = q.session;
  qkv_call *call = s.call;
  bool over = false;
  if (const int code = cut_tiles(s)) return code;
  head_by_head(s);
  const int64_t all_heads = times(call->N, call->H, &over);
  s.tasks = times(s.tiles, call->H, &over);
  if (q.ask->received) {
    q.strands = most(1, least(kStrandsOfOne, kStrandsOfAll / most(all_heads, 1)));
    s.tasks = times(all_heads, q.strands, &over);
    const int64_t sums = times(s.tasks, call->S, &over);
    const int64_t bytes = times(sums, int64_t(sizeof(T)), &over);
    if (over) return 2;
    q.strand_sum = (T *)qkv_allocate(size_t(bytes));
    if (!q.strand_sum) return 2;
  }
  const int64_t threads = most(1, least(least(call->threads, s.tasks), 1024));
  Noted<T> notes = {};
  if (over || take_scratch(s, threads, [&](Arena *measure) { notes.lay_out(measure, q.ask, s.lanes, s.block_rows); })) return 2;
  if (qkv_parallel(int(threads), keep_worker<T>, &q, poll_session<T>, &s)) s.stop = 1;
  if (s.stop) return 1;
  call->blocks_touched = s.blocks;
  if (q.ask->received)
    for (int64_t x = 0; x < all_heads; ++x)
      for (int64_t j = 0; j < call->S; ++j) {
        double sum = 0;
        for (int64_t strand = 0; strand < q.strands; ++strand) sum += double(q.strand_sum[(x * q.strands + strand) * call->S + j]);
        ((T *)q.ask->received)[x * call->S + j] = T(sum);
      }
  return 0;
}

template <class T> int keep(qkv_keep *ask) {
  qkv_call *call = &ask->call;
  call->status_any = 0, call->status_all = 0xff, call->blocks_touched = 0;
  if (call->N == 0 || call->L == 0) {
    call->status_all = 0;
    if (ask->received) __builtin_memset(ask->received, 0, size_t(call->N * call->H * call->S) * sizeof(T));
    return 0;
  }
  Keeping<T> q = {};
  q.ask = ask, q.session.call = call;
  const int code = keep_in(q);
  void *const owned[] = {q.session.cut, q.session.first, q.session.scratch, q.strand_sum};
  for (void *memory : owned) qkv_release(memory);
  return code;
}

}  // namespace

// QKV_LEVEL_KEEP is the name under which this translation unit exports it.
extern "C" int QKV_LEVEL_KEEP(qkv_keep *ask) {
  return ask->call.query.dtype == QKV_F64 ? keep<double>(ask) : keep<float>(ask);
}
