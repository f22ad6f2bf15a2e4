// Questions about the weights: the scores once more, weights from the states that the forward pass left, and sums,
// entropies and largest ones of them. Lanes are rows of one query head. The order of additions: entropy as the sum of
// the weights in the forward pass, and blocks in ascending order; received by lanes, each lane its rows in ascending
// order, then the lanes in order. What is asked of rows goes group by group, as the forward pass does.
#pragma once
#include "../answers.h"
#include "attend.hpp"

namespace {

template <class T> struct Inquiry {
  Session<T> session;  // its tiles, threads and scratch; tasks are our own
  qkv_answers *ask;
  int64_t runs;        // of keys, where `received` is asked for
};

// One worker's scratch beside Work.
template <class T> struct Notes {
  T *sum;          // [run][lanes of a panel]: what keys received
  T *entropy;      // [lanes]
  T *weight;       // [lanes][count], falling
  int64_t *key;
  T *least;        // [lanes]: the last of each list, -1 while it is not full

  void lay_out(Arena *arena, const qkv_answers *ask, int64_t lanes) {
    bool over = false;
    const int64_t listed = ask->top_key ? times(lanes, ask->count, &over) : 0;
    sum = arena->take<T>(ask->received ? times(ask->run, 2 * Real<T>::width, &over) : 0);
    entropy = arena->take<T>(lanes);
    weight = arena->take<T>(listed), key = arena->take<int64_t>(listed), least = arena->take<T>(lanes);
    if (over) arena->overflow = true;
  }
};

// A tile whose keys outside [floor, limit) are left out, of one query head if w.heads is 1; base and whole of its rows.
template <class T> void open_inquiry(Work<T> &w, const Inquiry<T> &q, int64_t n, int64_t part, int64_t row0, int64_t rows, int64_t floor, int64_t limit) {
  const qkv_call *call = w.call;
  open_tile(w, n, part, row0, rows, floor, limit);
  w.g = part * w.heads / (call->H / call->G), w.few = 0;
  if (!q.ask->base) return;
  const Panel &last = w.panel[w.panels - 1];
  for (int64_t i = 0; i < last.lane + last.vectors * Real<T>::width; ++i) {
    const int64_t at = (n * call->H + w.lane[i].head) * call->L + row0 + w.lane[i].row;
    w.max[i] = ((const T *)q.ask->base)[at], w.sum[i] = ((const T *)q.ask->whole)[at];
  }
}

// Sum over the block's keys of exp(x) x with x = score - base, in four strands as the sum of the weights.
template <class T, int N> void add_entropy(Work<T> &w, const Panel &p, Notes<T> &notes) {
  constexpr int width = Real<T>::width, W = N * width;
  const Vec<T> low = all<T>(sizeof(T) == 8 ? T(-746) : T(-104));  // where exp gives 0
  for (int v = 0; v < N; ++v) {
    const Vec<T> base = load(w.max + p.lane + v * width);
    const T *score = w.score + v * width;
    Vec<T> strand[4] = {};
    for (int64_t j = p.begin; j < p.end; ++j) {
      const Vec<T> x = larger<T>(load(score + j * W) - base, low);
      strand[j & 3] = fma(exponential<T>(x), x, strand[j & 3]);
    }
    T *into = notes.entropy + p.lane + v * width;
    store(into, load(into) + ((strand[0] + strand[1]) + (strand[2] + strand[3])));
  }
}

// What the keys receive from the rows of the panel; `first` is the key that notes.sum begins with.
template <class T, int N> void add_received(Work<T> &w, const Panel &p, bool masked, Notes<T> &notes, int64_t first) {
  constexpr int width = Real<T>::width, W = N * width;
  const int64_t used = w.rows * w.heads - p.lane;
  for (int v = 0; v < N; ++v) {
    const Vec<T> base = load(w.max + p.lane + v * width);
    Vec<T> by = all<T>(1) / load(w.sum + p.lane + v * width);
    for (int i = 0; i < width; ++i)
      if (v * width + i >= used) by[i] = 0;  // repeats the last row
    const T *score = w.score + v * width;
    T *sum = notes.sum + (w.first - first) * 2 * width + v * width;
    if (masked)
      for (int64_t j = p.begin; j < p.end; ++j) {
        const Vec<T> weight = exponential<T>(load(score + j * W) - base) * by;
        store(sum + j * 2 * width, load(sum + j * 2 * width) + select<T>(load_int<T>(w.mask + j * W + v * width), weight, Vec<T>{}));
      }
    else
      for (int64_t j = p.begin; j < p.end; ++j)
        store(sum + j * 2 * width, fma(exponential<T>(load(score + j * W) - base), by, load(sum + j * 2 * width)));
  }
}

template <class T> __attribute__((noinline)) void list_weight(Notes<T> &notes, int64_t lane, int64_t count, T weight, int64_t key) {
  T *const weights = notes.weight + lane * count;
  int64_t *const keys = notes.key + lane * count;
  int64_t at = count - 1;
  for (; at > 0 && weight > weights[at - 1]; --at) weights[at] = weights[at - 1], keys[at] = keys[at - 1];
  weights[at] = weight, keys[at] = key;
  notes.least[lane] = weights[count - 1];
}

template <class T, int N> void add_top(Work<T> &w, const Panel &p, bool masked, Notes<T> &notes, int64_t count) {
  constexpr int width = Real<T>::width, W = N * width;
  for (int v = 0; v < N; ++v) {
    const Vec<T> base = load(w.max + p.lane + v * width), whole = load(w.sum + p.lane + v * width);
    T *const least = notes.least + p.lane + v * width;
    Vec<T> last = load(least);
    for (int64_t j = p.begin; j < p.end; ++j) {
      Vec<T> weight = exponential<T>(load(w.score + j * W + v * width) - base) / whole;
      if (masked) weight = select<T>(load_int<T>(w.mask + j * W + v * width), weight, all<T>(-1));
      const IVec<T> higher = weight > last;
      if (__builtin_expect(!any<T>(higher), 1)) continue;
      for (int i = 0; i < width; ++i)
        if (higher[i]) list_weight<T>(notes, p.lane + v * width + i, count, weight[i], w.first + j);
      last = load(least);
    }
  }
}

// The panel's scores to where each row's are.
template <class T, int N> void put_scores(const Work<T> &w, const Panel &p, bool masked, const qkv_answers *ask) {
  constexpr int W = N * Real<T>::width;
  for (int i = 0; i < W && p.lane + i < w.rows * w.heads; ++i) {
    const Lane<T> &lane = w.lane[p.lane + i];
    const int64_t at = ((w.n * w.call->H + lane.head) * w.call->L + w.row0 + lane.row) * w.call->S + w.first;
    T *const score = (T *)ask->score + at;
    uint8_t *const reach = ask->reach + at;
    for (int64_t j = p.begin; j < p.end; ++j)
      if (!masked || w.mask[j * W + i]) score[j] = w.score[j * W + i], reach[j] = 1;
  }
}

// Rows of a tile of one group: entropy, largest weights and scores.
template <class T> void inquire_rows(Work<T> &w, Inquiry<T> &q, Notes<T> &notes, int worker, int64_t task) {
  Session<T> &s = q.session;
  qkv_answers *ask = q.ask;
  const qkv_call *call = s.call;
  const Place tile = place_of(s, task);
  const int64_t count = ask->count;
  open_inquiry(w, q, tile.n, tile.g, tile.row0, tile.rows, 0, call->S);
  pack_queries(w);
  const Panel &last = w.panel[w.panels - 1];
  const int64_t lanes = last.lane + last.vectors * Real<T>::width;
  for (int64_t i = 0; i < lanes; ++i) notes.entropy[i] = 0, notes.least[i] = -1;
  if (ask->top_key)
    for (int64_t i = 0; i < lanes * count; ++i) notes.weight[i] = -1, notes.key[i] = -1;
  for (int64_t from = 0, stop; (stop = next_block(w, from)) != kNone; from = stop) {
    if (stopped(s, worker)) return;
    ready_keys(w);
    for (int64_t k = 0; k < w.panels; ++k) {
      const Panel &p = w.panel[k];
      if (p.begin >= p.end) continue;
      with_vectors(p.vectors, [&](auto vectors) {
        constexpr int N = decltype(vectors)::count;
        Vec<T> top[N];
        bool masked;
        if (!score_panel<T, N>(w, p, masked, top)) return;
        if (ask->entropy) add_entropy<T, N>(w, p, notes);
        if (ask->top_key) add_top<T, N>(w, p, masked, notes, count);
        if (ask->score) put_scores<T, N>(w, p, masked, ask);
      });
    }
  }
  for (int64_t i = 0; i < w.rows * w.heads; ++i) {
    const int64_t at = (w.n * call->H + w.lane[i].head) * call->L + w.row0 + w.lane[i].row;
    if (ask->entropy) {
      const T nats = log1(w.sum[i]) - notes.entropy[i] / w.sum[i];
      ((T *)ask->entropy)[at] = nats < 0 ? T(0) : nats;
    }
    if (ask->top_key)
      for (int64_t k = 0; k < count; ++k) {
        const int64_t key = notes.key[i * count + k];
        ask->top_key[at * count + k] = key < 0 ? -1 : key + ask->first_key;
        ((T *)ask->top_weight)[at * count + k] = key < 0 ? T(0) : notes.weight[i * count + k];
      }
  }
}

// A run of keys of one head: what they receive from all rows.
template <class T> void inquire_keys(Work<T> &w, Inquiry<T> &q, Notes<T> &notes, int worker, int64_t task) {
  constexpr int64_t wide = 2 * Real<T>::width;
  Session<T> &s = q.session;
  qkv_answers *ask = q.ask;
  const qkv_call *call = s.call;
  const int64_t n = task / (call->H * q.runs), h = task / q.runs % call->H, first = task % q.runs * ask->run;
  const int64_t end = least(first + ask->run, call->S);
  for (int64_t i = 0; i < (end - first) * wide; ++i) notes.sum[i] = 0;
  for (int64_t t = 0; t < s.tiles_of(n); ++t) {
    const int64_t row0 = s.row_begin(n, t);
    open_inquiry(w, q, n, h, row0, s.row_end(n, t) - row0, first, end);
    bool packed = false;
    for (int64_t from = 0, stop; (stop = next_block(w, from)) != kNone; from = stop) {
      if (stopped(s, worker)) return;
      if (!packed) pack_queries(w), packed = true;
      ready_keys(w);
      for (int64_t k = 0; k < w.panels; ++k) {
        const Panel &p = w.panel[k];
        if (p.begin >= p.end) continue;
        with_vectors(p.vectors, [&](auto vectors) {
          constexpr int N = decltype(vectors)::count;
          Vec<T> top[N];
          bool masked;
          if (score_panel<T, N>(w, p, masked, top)) add_received<T, N>(w, p, masked, notes, first);
        });
      }
    }
  }
  for (int64_t j = first; j < end; ++j) {
    double sum = 0;
    for (int64_t i = 0; i < wide; ++i) sum += double(notes.sum[(j - first) * wide + i]);
    ((T *)ask->received)[(n * call->H + h) * call->S + j] = T(sum);
  }
}

template <class T> void inquire_worker(void *context, int worker) {
  Inquiry<T> &q = *(Inquiry<T> *)context;
  Session<T> &s = q.session;
  Work<T> w = {};
  Notes<T> notes = {};
  bind_work(w, s, worker);
  Arena arena = {s.scratch + size_t(worker) * s.scratch_bytes, 0, false};
  w.lay_out(&arena);
  notes.lay_out(&arena, q.ask, s.lanes);
  int64_t task;
  while ((task = __atomic_fetch_add(&s.next, int64_t(1), __ATOMIC_RELAXED)) < s.tasks) {
    if (stopped(s, worker)) break;
    if (s.merging)
      inquire_keys(w, q, notes, worker, task);
    else
      inquire_rows(w, q, notes, worker, task);
  }
}

template <class T> int inquire_drive(Inquiry<T> &q, int64_t tasks, bool keys) {
  Session<T> &s = q.session;
  s.next = 0, s.tasks = tasks, s.merging = keys, s.heads = keys ? 1 : s.call->H / s.call->G;
  const int threads = int(least(least(s.call->threads, tasks), 1024));
  if (qkv_parallel(threads < 1 ? 1 : threads, inquire_worker<T>, &q, poll_session<T>, &s)) s.stop = 1;
  return s.stop ? 1 : 0;
}

template <class T> int inquire_in(Inquiry<T> &q) {
  Session<T> &s = q.session;
  qkv_call *call = s.call;
  bool over = false;
  if (const int code = cut_tiles(s)) return code;
  group_by_group(s, &over);
  q.runs = (call->S + q.ask->run - 1) / q.ask->run;
  const int64_t row_tasks = times(s.tiles, call->G, &over), key_tasks = times(times(call->N, call->H, &over), q.runs, &over);
  const int64_t threads = most(1, least(least(call->threads, most(row_tasks, key_tasks)), 1024));
  Notes<T> notes = {};
  if (over || take_scratch(s, threads, [&](Arena *measure) { notes.lay_out(measure, q.ask, s.lanes); })) return 2;
  if ((q.ask->entropy || q.ask->top_key || q.ask->score) && inquire_drive(q, row_tasks, false)) return 1;
  if (q.ask->received && inquire_drive(q, key_tasks, true)) return 1;
  return 0;
}

template <class T> int inquire(qkv_answers *ask) {
  if (ask->call.N == 0 || ask->call.L == 0) return 0;
  Inquiry<T> q = {};
  q.ask = ask, q.session.call = &ask->call;
  const int code = inquire_in(q);
  void *const owned[] = {q.session.cut, q.session.first, q.session.scratch};
  for (void *memory : owned) qkv_release(memory);
  return code;
}

}  // namespace

// QKV_LEVEL_ANSWERS is the name under which this translation unit exports it.
extern "C" int QKV_LEVEL_ANSWERS(qkv_answers *ask) {
  return ask->call.query.dtype == QKV_F64 ? inquire<double>(ask) : inquire<float>(ask);
}
