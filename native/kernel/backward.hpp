// The backward pass of a call, cut into tasks. A task of one pass is a group of one batch: its rows in ascending tiles, each
// over its blocks of keys in ascending order, five products a pair of them. With fewer such tasks than threads, queries and
// keys are cut instead: first a task a tile for the queries' gradients, then a task a run of keys for the keys', seven
// products, the same chains and so the same bits.
#pragma once
#include "backward_tile.hpp"

namespace {

template <class T> struct Retreat {
  qkv_backward *back;
  int64_t tiles, runs, tasks;
  bool queries, keys;  // what this pass gives
  char *scratch;
  size_t scratch_bytes;
  int64_t next, stop;
};

template <class T> int poll_retreat(void *context) {
  Retreat<T> &s = *(Retreat<T> *)context;
  const qkv_call &call = s.back->call;
  if (!call.poll || !call.poll(call.poll_context)) return 0;
  __atomic_store_n(&s.stop, int64_t(1), __ATOMIC_RELAXED);
  return 1;
}

template <class T> bool halted(Retreat<T> &s, int worker) {
  if (__atomic_load_n(&s.stop, __ATOMIC_RELAXED)) return true;
  return worker == 0 && poll_retreat<T>(&s);
}

template <class T> void bind_back(BackTile<T> &w, const Retreat<T> &s, int worker) {
  const qkv_call *call = &s.back->call;
  w.back = s.back, w.call = call;
  w.heads = call->H / call->G, w.tile_rows = least(call->tile_rows, call->L);
  w.lanes = (w.tile_rows * w.heads + w.W - 1) / w.W * w.W, w.block = least(call->block, most(call->S, 1));
  w.want_query = s.queries, w.want_key = s.keys;
  Pieces pieces = {s.scratch ? s.scratch + size_t(worker) * s.scratch_bytes : nullptr, 0, false};
  w.lay_out(&pieces);
}

// Tiles [first, last) of a group against the keys [floor, limit); false: stopped.
template <class T> bool retreat(BackTile<T> &w, Retreat<T> &s, int worker, int64_t n, int64_t g, int64_t first, int64_t last, int64_t floor, int64_t limit) {
  const qkv_call *call = w.call;
  for (int64_t t = first; t < last; ++t) {
    const int64_t row0 = t * call->tile_rows;
    w.open(n, g, row0, least(call->tile_rows, call->L - row0), floor, limit);
    if (!w.want_query && !w.any_key()) continue;
    w.pack();
    for (int64_t from = 0, stop; (stop = w.next_block(from)) != kNone; from = stop) {
      if (halted(s, worker)) return false;
      w.pack_block();
      w.actives = 0;
      for (int64_t panel = 0; panel < w.panels; ++panel) w.visit(panel);
      if (w.want_key) w.give_keys();
    }
    if (w.want_query) w.give_queries();
  }
  return true;
}

template <class T> void run_retreat(void *context, int worker) {
  Retreat<T> &s = *(Retreat<T> *)context;
  const qkv_call &call = s.back->call;
  BackTile<T> w = {};
  bind_back(w, s, worker);
  const int64_t parts = s.tasks / (call.N * call.G);
  int64_t task;
  while ((task = __atomic_fetch_add(&s.next, int64_t(1), __ATOMIC_RELAXED)) < s.tasks) {
    if (halted(s, worker)) return;
    const int64_t group = task / parts, n = group / call.G, g = group % call.G;
    int64_t first = 0, last = s.tiles, floor = 0, limit = call.S;
    if (!s.keys)  // late rows first: under a causal mask they have the most keys
      first = parts - 1 - task % parts, last = first + 1;
    else if (!s.queries)
      floor = task % parts * call.split, limit = floor + call.split;
    if (!retreat(w, s, worker, n, g, first, last, floor, limit)) return;
  }
}

template <class T> int pass_back(Retreat<T> &s, bool queries, bool keys) {
  const qkv_call &call = s.back->call;
  s.queries = queries, s.keys = keys, s.next = 0;
  s.tasks = call.N * call.G * (queries && keys ? 1 : queries ? s.tiles : s.runs);
  const int threads = int(least(least(call.threads, s.tasks), 1024));
  if (s.tasks && qkv_parallel(threads < 1 ? 1 : threads, run_retreat<T>, &s, poll_retreat<T>, &s)) s.stop = 1;
  return s.stop ? 1 : 0;
}

template <class T> int retreat_all(qkv_backward *back) {
  const qkv_call &call = back->call;
  if (call.N == 0 || call.L == 0) return 0;
  Retreat<T> s = {};
  s.back = back;
  s.tiles = (call.L + call.tile_rows - 1) / call.tile_rows, s.runs = (call.S + call.split - 1) / call.split;
  BackTile<T> probe = {};
  probe.call = &call, probe.tile_rows = least(call.tile_rows, call.L);
  int64_t lanes = 0;
  if (__builtin_mul_overflow(probe.tile_rows, call.H / call.G, &lanes) || lanes > (int64_t(1) << 40)) return 2;
  probe.lanes = (lanes + probe.W - 1) / probe.W * probe.W, probe.block = least(call.block, most(call.S, 1));
  Pieces measure = {nullptr, 0, false};
  probe.lay_out(&measure);
  s.scratch_bytes = measure.used;
  size_t bytes = 0;
  if (measure.overflow || __builtin_mul_overflow(measure.used, size_t(most(1, least(call.threads, 1024))), &bytes)) return 2;
  s.scratch = (char *)qkv_allocate(bytes);
  if (!s.scratch) return 2;
  int code = call.spread ? pass_back(s, true, false) : pass_back(s, true, true);
  if (!code && call.spread) code = pass_back(s, false, true);
  qkv_release(s.scratch);
  return code;
}

}  // namespace

// QKV_LEVEL_BACKWARD is the second name this translation unit exports.
extern "C" int QKV_LEVEL_BACKWARD(qkv_backward *back) {
  return back->call.query.dtype == QKV_F64 ? retreat_all<double>(back) : retreat_all<float>(back);
}
