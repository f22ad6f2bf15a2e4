// One panel meets one block of keys: scores, mask, weights, mixture. The state of a lane changes only through keys
// that its row may read; a lane without any in this block keeps its bits, because its alpha is 1 and its weights 0.
#pragma once
#include "mask.hpp"
#include "product.hpp"
#include "state.hpp"

namespace {

// Greatest allowed score per lane; forbidden ones become -inf. Answers whether any score was not finite before.
template <class T, int N> QKV_INLINE bool scan_scores(Work<T> &w, const Panel &p, bool masked, Vec<T> *top) {
  constexpr int width = Real<T>::width, pace = 2;
  const Vec<T> none = all<T>(-Real<T>::infinity);
  // Two keys at a time: one after the other would wait for the last one's result.
  Vec<T> odd[pace * N], high[pace * N];
  for (int v = 0; v < pace * N; ++v) odd[v] = Vec<T>{}, high[v] = none;
  T *s = w.score + p.begin * N * width;
  const typename Real<T>::Int *mask = w.mask + p.begin * N * width;
  const auto one = [&](int v, bool hide) {
    const Vec<T> raw = load(s + v * width);
    odd[v] = fma(raw, Vec<T>{}, odd[v]);
    if (!hide) {
      high[v] = larger<T>(raw, high[v]);
      return;
    }
    const Vec<T> x = select<T>(load_int<T>(mask + v * width), raw, none);
    high[v] = larger<T>(x, high[v]);
    store(s + v * width, x);
  };
  const auto walk = [&](bool hide) {
    int64_t j = p.begin;
    for (; j + pace <= p.end; j += pace, s += pace * N * width, mask += pace * N * width)
      for (int v = 0; v < pace * N; ++v) one(v, hide);
    for (; j < p.end; ++j, s += N * width, mask += N * width)
      for (int v = 0; v < N; ++v) one(v, hide);
  };
  if (masked)
    walk(true);
  else
    walk(false);
  bool odd_seen = false;
  for (int v = 0; v < N; ++v) {
    top[v] = larger<T>(high[v], high[v + N]);
    odd_seen |= any<T>(odd[v] != odd[v]) | any<T>(odd[v + N] != odd[v + N]);
  }
  return odd_seen;
}

// What a visit tells whoever wants to know more than the mixture (keep.hpp): here nobody.
struct Unnoted {
  template <int N, class T> QKV_INLINE void scored(Work<T> &, const Panel &, const Vec<T> *) {}
  QKV_INLINE void open() {}
  template <class V> QKV_INLINE void weighed(int, V, V) {}
  template <class V> QKV_INLINE void close(int64_t, V, V, V, V) {}
};

// Scores become weights exp(s - base). Their sum is taken in four strands, by the key's number in the block modulo
// four: an order that no other row, and no skipped key, can change.
template <class T, class Note> QKV_INLINE Vec<T> weigh(T *score, int64_t step, int64_t begin, int64_t end, Vec<T> base, Note &note) {
  Vec<T> strand[4] = {};
  int64_t j = begin;
  const auto one = [&](int which) {
    const Vec<T> x = load(score + j * step) - base, weight = exponential<T>(x);
    store(score + j * step, weight);
    strand[which] = strand[which] + weight;
    note.weighed(which, weight, x);
    ++j;
  };
  while (j < end && (j & 3)) switch (j & 3) {
      case 1: one(1); break;
      case 2: one(2); break;
      default: one(3);
    }
  while (j + 4 <= end) one(0), one(1), one(2), one(3);
  if (j < end) one(0);
  if (j < end) one(1);
  if (j < end) one(2);
  return (strand[0] + strand[1]) + (strand[2] + strand[3]);
}

// The panel's scores with the block at hand, -inf where a pair is forbidden, and the greatest of each lane. Answers
// whether any pair is allowed; `masked`: whether w.mask says which are, else all are.
template <class T, int N> QKV_INLINE bool score_panel(Work<T> &w, const Panel &p, bool &masked, Vec<T> *top) {
  constexpr int width = Real<T>::width, W = N * width;
  const qkv_call *call = w.call;
  const int64_t D = call->D, keys = p.end - p.begin;
  masked = !p.full || call->allow.base || call->bias.base;

  if (masked) {
    mask_ranges<T, N>(w, p);
    if (call->allow.base) mask_allow<T, N>(w, p);
    if (call->bias.base) mask_bias<T, N>(w, p);
    if (!note_allowed<T, N>(w, p)) return false;
  } else {
    for (int i = 0; i < W; ++i) w.lane[p.lane + i].flag |= QKV_ALLOWED;
  }
  if (__builtin_expect(w.any_bad, 0))
    for (int64_t j = p.begin; j < p.end; ++j)
      if (w.bad[j])
        for (int i = 0; i < W; ++i)
          if (!masked || w.mask[j * W + i]) w.lane[p.lane + i].flag |= QKV_NONFINITE;

  if (QKV_PAIRS && w.pairs)
    pair_scores<T, N>(w, p);
  else
    scores_of<T, N>(keys, D, w.key_rows + p.begin * D, w.query + p.lane * D, w.score + p.begin * W);
  bool dot = true;  // the scores are still plain dot products
  if (call->softcap > 0 || call->slopes || call->bias.base) {
    if (any_odd<T, N>(w, p)) settle<T, N>(w, p, masked, true);
    if (call->softcap > 0) apply_softcap<T, N>(w, p);
    if (call->slopes) apply_alibi<T, N>(w, p);
    if (call->bias.base) apply_bias<T, N>(w, p);
    dot = false;
  }
  if (__builtin_expect((scan_scores<T, N>(w, p, masked, top)), 0)) {
    settle<T, N>(w, p, masked, dot);
    scan_scores<T, N>(w, p, masked, top);
  }
  return true;
}

template <class T, int N, class Note> void visit(Work<T> &w, const Panel &p, Note &note) {
  constexpr int width = Real<T>::width, W = N * width;
  const int64_t E = w.call->E, keys = p.end - p.begin;
  Vec<T> top[N];
  bool masked;
  if (!score_panel<T, N>(w, p, masked, top)) return;
  note.template scored<N>(w, p, top);

  alignas(kAlign) T alpha[W];
  for (int v = 0; v < N; ++v) {
    T *max = w.max + p.lane + v * width, *sum = w.sum + p.lane + v * width;
    const Vec<T> before = load(max), after = larger<T>(before, top[v]);
    const Vec<T> base = after == all<T>(-Real<T>::infinity) ? Vec<T>{} : after;
    const Vec<T> shrink = exponential<T>(before - base);
    store(max, after);
    store(alpha + v * width, shrink);
    note.open();
    const Vec<T> added = weigh<T>(w.score + v * width, W, p.begin, p.end, base, note);
    note.close(p.lane + v * width, before, base, shrink, load(sum));
    store(sum, fma(load(sum), shrink, added));
  }
  mix_values<T, N>(keys, E, w.value_rows + p.begin * E, w.score + p.begin * W, w.mix + p.lane * E, alpha);
}

}  // namespace
