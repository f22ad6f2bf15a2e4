// A survey of the weights: the scores once more, and from them everything that a summary needs. Lanes are rows of one
// query head. Sums over the keys of a row go in the order of entropy in answers.hpp; sums over rows become whole numbers
// tile by tile, whose order does not matter; a maximum has none.
#pragma once
#include "../survey.h"
#include "attend.hpp"

namespace {

template <class T> struct Overview {
  Session<T> session;  // its tiles, threads and scratch; tasks are our own
  qkv_survey *ask;
};

// One worker's scratch beside Work.
template <class T> struct Sketch {
  T *entropy, *distance;  // [lanes]
  T *part;                // [lanes]: 0 for lanes that repeat a row and for lost rows
  T *sum;                 // [block][vector]: what keys receive from the tile's rows
  T *best;                // [cells of a block][lanes]
  int64_t *band, *place;  // [lanes]: where the row lies in the map, and stands among the keys
  uint8_t *lost;          // [lanes]
  bool any_lost;

  void lay_out(Arena *arena, const qkv_survey *ask, int64_t lanes, int64_t block_rows) {
    bool over = false;
    const int64_t cells = ask->pooled ? least(ask->cells, block_rows + 1) : 0;
    entropy = arena->take<T>(lanes), distance = arena->take<T>(lanes), part = arena->take<T>(lanes);
    sum = arena->take<T>(ask->received ? times(block_rows, Real<T>::width, &over) : 0);
    best = arena->take<T>(times(cells, lanes, &over));
    band = arena->take<int64_t>(lanes), place = arena->take<int64_t>(lanes), lost = arena->take<uint8_t>(lanes);
    if (over) arena->overflow = true;
  }
};

// The number of the run of `edge` that holds `at`.
QKV_INLINE int64_t run_of(const int64_t *edge, int64_t runs, int64_t at) { return find_last(edge, runs, at); }

template <class T, int N> void add_sums(Work<T> &w, const Panel &p, Sketch<T> &sketch, const qkv_survey *ask) {
  constexpr int width = Real<T>::width, W = N * width;
  const Vec<T> low = all<T>(sizeof(T) == 8 ? T(-746) : T(-104));  // where exp gives 0
  for (int v = 0; v < N; ++v) {
    const int64_t lane = p.lane + v * width;
    const Vec<T> base = load(w.max + lane), part = load(sketch.part + lane);
    alignas(kAlign) T from[width];
    for (int i = 0; i < width; ++i) from[i] = T(sketch.place[lane + i] - w.first);
    const Vec<T> at = load(from);
    const T *score = w.score + v * width;
    Vec<T> nats[4] = {}, far[4] = {};
    for (int64_t j = p.begin; j < p.end; ++j) {
      const Vec<T> x = larger<T>(load(score + j * W) - base, low), mass = exponential<T>(x);
      nats[j & 3] = fma(mass, x, nats[j & 3]);
      far[j & 3] = fma(mass, at - all<T>(T(j)), far[j & 3]);
      if (ask->received) store(sketch.sum + j * width, fma(mass, part, load(sketch.sum + j * width)));
    }
    T *entropy = sketch.entropy + lane, *distance = sketch.distance + lane;
    store(entropy, load(entropy) + ((nats[0] + nats[1]) + (nats[2] + nats[3])));
    store(distance, load(distance) + ((far[0] + far[1]) + (far[2] + far[3])));
  }
}

// The largest score of each lane in each cell of the block; exp keeps their order, so it is taken once a cell.
template <class T, int N> void add_best(Work<T> &w, const Panel &p, Sketch<T> &sketch, const qkv_survey *ask, int64_t first_cell) {
  constexpr int width = Real<T>::width, W = N * width;
  const int64_t shift = w.first + ask->first_key;
  for (int64_t j = p.begin, c = run_of(ask->key_edge, ask->cells, p.begin + shift); j < p.end; ++c) {
    const int64_t end = least(p.end, ask->key_edge[c + 1] - shift);
    Vec<T> high[N];
    for (int v = 0; v < N; ++v) high[v] = all<T>(-Real<T>::infinity);
    for (; j < end; ++j)
      for (int v = 0; v < N; ++v) high[v] = larger<T>(load(w.score + j * W + v * width), high[v]);
    for (int v = 0; v < N; ++v) {
      const int64_t lane = p.lane + v * width;
      T *into = sketch.best + (c - first_cell) * w.lanes + lane;
      store(into, larger<T>(exponential<T>(high[v] - load(w.max + lane)) * load(sketch.part + lane), load(into)));
    }
  }
}

// Rows that are lost make every key NaN that they may read.
template <class T, int N> __attribute__((noinline)) void spoil(Work<T> &w, const Panel &p, bool masked, Sketch<T> &sketch, const qkv_survey *ask, int64_t first_cell) {
  constexpr int W = N * Real<T>::width;
  for (int i = 0; i < W; ++i) {
    const Lane<T> &lane = w.lane[p.lane + i];
    if (!sketch.lost[p.lane + i]) continue;
    for (int64_t j = p.begin; j < p.end; ++j) {
      if (masked && !w.mask[j * W + i]) continue;
      if (ask->received)
        __atomic_store_n(ask->spoiled + (w.n * w.call->H + lane.head) * w.call->S + w.first + j, uint8_t(1), __ATOMIC_RELAXED);
      if (ask->pooled)
        sketch.best[(run_of(ask->key_edge, ask->cells, w.first + j + ask->first_key) - first_cell) * w.lanes + p.lane + i] = T(__builtin_nan(""));
    }
  }
}

// Weights are not negative and NaN is positive: as whole numbers they stand in the same order, NaN last.
template <class T> void raise_to(T *place, T value) {
  typename Real<T>::Int bits, before;
  __builtin_memcpy(&bits, &value, sizeof value);
  auto *at = (typename Real<T>::Int *)place;
  before = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (before < bits && !__atomic_compare_exchange_n(at, &before, bits, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

template <class T> void give_block(Work<T> &w, Sketch<T> &sketch, const qkv_survey *ask, int64_t h, int64_t first_cell, int64_t last_cell) {
  constexpr int width = Real<T>::width;
  const qkv_call *call = w.call;
  if (ask->received) {
    int64_t *into = ask->received + (w.n * call->H + h) * call->S + w.first;
    for (int64_t j = w.begin; j < w.end; ++j) {
      T *sum = sketch.sum + j * width;
      for (int half = width / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) sum[i] += sum[i + half];
      const double units = double(sum[0]) * ask->unit;
      if (units > 0) __atomic_fetch_add(into + j, int64_t(__builtin_rint(units)), __ATOMIC_RELAXED);
    }
  }
  if (ask->pooled)
    for (int64_t c = first_cell; c <= last_cell; ++c) {
      const T *best = sketch.best + (c - first_cell) * w.lanes;
      T *into = (T *)ask->pooled + (w.n * call->H + h) * ask->bands * ask->cells + c;
      for (int64_t i = 0; i < w.rows;) {
        const int64_t band = sketch.band[i];
        T top = 0;
        bool odd = false;
        for (; i < w.rows && sketch.band[i] == band; ++i) odd |= best[i] != best[i], top = best[i] > top ? best[i] : top;
        raise_to<T>(into + band * ask->cells, odd ? T(__builtin_nan("")) : top);
      }
    }
}

template <class T> void survey_tile(Work<T> &w, Overview<T> &o, Sketch<T> &sketch, int worker, int64_t task) {
  constexpr int width = Real<T>::width;
  Session<T> &s = o.session;
  qkv_survey *ask = o.ask;
  const qkv_call *call = s.call;
  int64_t n, local;
  if (s.first) {
    n = find_last(s.first, call->N, task / call->H);
    local = task - s.first[n] * call->H;
  } else {
    n = task / (call->H * s.shared_tiles), local = task % (call->H * s.shared_tiles);
  }
  const int64_t tiles = s.tiles_of(n), h = local / tiles, t = tiles - 1 - local % tiles, row0 = s.row_begin(n, t);
  open_tile(w, n, h, row0, s.row_end(n, t) - row0, 0, call->S);
  w.g = h / (call->H / call->G), w.few = 0;
  pack_queries(w);
  const Panel &last = w.panel[w.panels - 1];
  const int64_t lanes = last.lane + last.vectors * width;
  sketch.any_lost = false;
  for (int64_t i = 0; i < lanes; ++i) {
    const int64_t row = row0 + w.lane[i].row, at = (n * call->H + h) * call->L + row;
    w.max[i] = ((const T *)ask->base)[at], w.sum[i] = ((const T *)ask->whole)[at];
    const T part = ((const T *)ask->part)[at];
    const bool used = i < w.rows;
    sketch.lost[i] = used && part != part;
    sketch.any_lost |= sketch.lost[i];
    sketch.part[i] = used && part == part ? part : T(0);
    sketch.entropy[i] = sketch.distance[i] = 0;
    sketch.place[i] = ask->position[n * ask->position_batch + row];
    sketch.band[i] = ask->pooled ? run_of(ask->row_edge, ask->bands, row + ask->first_row) : 0;
  }
  for (int64_t from = 0, stop; (stop = next_block(w, from)) != kNone; from = stop) {
    if (stopped(s, worker)) return;
    ready_keys(w);
    int64_t first_cell = 0, last_cell = -1;
    if (ask->pooled) {
      first_cell = run_of(ask->key_edge, ask->cells, w.first + w.begin + ask->first_key);
      last_cell = run_of(ask->key_edge, ask->cells, w.first + w.end - 1 + ask->first_key);
      for (int64_t i = 0; i < (last_cell - first_cell + 1) * w.lanes; ++i) sketch.best[i] = 0;
    }
    if (ask->received)
      for (int64_t i = w.begin * width; i < w.end * width; ++i) sketch.sum[i] = 0;
    for (int64_t k = 0; k < w.panels; ++k) {
      const Panel &p = w.panel[k];
      if (p.begin >= p.end) continue;
      with_vectors(p.vectors, [&](auto vectors) {
        constexpr int N = decltype(vectors)::count;
        Vec<T> top[N];
        bool masked;
        if (!score_panel<T, N>(w, p, masked, top)) return;
        if (ask->pooled) add_best<T, N>(w, p, sketch, ask, first_cell);
        if (__builtin_expect(sketch.any_lost, 0)) spoil<T, N>(w, p, masked, sketch, ask, first_cell);
        if (ask->entropy || ask->distance || ask->received) add_sums<T, N>(w, p, sketch, ask);
      });
    }
    give_block(w, sketch, ask, h, first_cell, last_cell);
  }
  for (int64_t i = 0; i < w.rows; ++i) {
    const int64_t at = (n * call->H + h) * call->L + row0 + i;
    if (ask->entropy) {
      const T nats = log1(w.sum[i]) - sketch.entropy[i] / w.sum[i];
      ((T *)ask->entropy)[at] = nats < 0 ? T(0) : nats;
    }
    if (ask->distance) ((T *)ask->distance)[at] = sketch.distance[i] / w.sum[i];
  }
}

template <class T> void survey_worker(void *context, int worker) {
  Overview<T> &o = *(Overview<T> *)context;
  Session<T> &s = o.session;
  Work<T> w = {};
  Sketch<T> sketch = {};
  bind_work(w, s, worker);
  Arena arena = {s.scratch + size_t(worker) * s.scratch_bytes, 0, false};
  w.lay_out(&arena);
  sketch.lay_out(&arena, o.ask, s.lanes, s.block_rows);
  int64_t task;
  while ((task = __atomic_fetch_add(&s.next, int64_t(1), __ATOMIC_RELAXED)) < s.tasks) {
    if (stopped(s, worker)) break;
    survey_tile(w, o, sketch, worker, task);
  }
}

template <class T> int survey_in(Overview<T> &o) {
  Session<T> &s = o.session;
  qkv_call *call = s.call;
  bool over = false;
  if (const int code = cut_tiles(s)) return code;
  head_by_head(s);
  s.next = 0, s.tasks = times(s.tiles, call->H, &over);
  const int64_t threads = most(1, least(least(call->threads, s.tasks), 1024));
  Sketch<T> sketch = {};
  if (over || take_scratch(s, threads, [&](Arena *measure) { sketch.lay_out(measure, o.ask, s.lanes, s.block_rows); })) return 2;
  if (qkv_parallel(int(threads), survey_worker<T>, &o, poll_session<T>, &s)) s.stop = 1;
  return s.stop ? 1 : 0;
}

template <class T> int survey(qkv_survey *ask) {
  if (ask->call.N == 0 || ask->call.L == 0) return 0;
  Overview<T> o = {};
  o.ask = ask, o.session.call = &ask->call;
  const int code = survey_in(o);
  void *const owned[] = {o.session.cut, o.session.first, o.session.scratch};
  for (void *memory : owned) qkv_release(memory);
  return code;
}

}  // namespace

// QKV_LEVEL_SURVEY is the name under which this translation unit exports it.
extern "C" int QKV_LEVEL_SURVEY(qkv_survey *ask) {
  return ask->call.query.dtype == QKV_F64 ? survey<double>(ask) : survey<float>(ask);
}
