// Which pairs of a panel and a block are allowed: ranges, then the caller's mask, then a bias of -inf. The bias is
// read here and nowhere else, and only where ranges and mask allow the pair.
#pragma once
#include "work.hpp"

namespace {

// mask[j][lane] = -1 or 0 for j in [begin, end) of the panel, from the ranges of the lanes' rows.
template <class T, int N> void mask_ranges(Work<T> &w, const Panel &p) {
  typedef typename Real<T>::Int Int;
  constexpr int W = N * Real<T>::width;
  for (int64_t round = 0;; ++round) {
    alignas(kAlign) Int lo[W], hi[W];
    bool more = false;
    for (int i = 0; i < W; ++i) {
      const RowKeys &row = w.row[w.lane[p.lane + i].row];
      const int64_t k = row.cursor + round;
      lo[i] = hi[i] = 0;
      if (k >= row.count) continue;
      const int64_t from = most(row.low(k), w.first), to = least(row.high(k), w.first + w.count);
      if (from < to) lo[i] = Int(from - w.first), hi[i] = Int(to - w.first);
      more |= from < to || row.low(k) >= row.high(k) || round == 0;
    }
    if (round > 0 && !more) return;
    for (int v = 0; v < N; ++v) {
      const IVec<T> from = load_int<T>(lo + v * Real<T>::width), to = load_int<T>(hi + v * Real<T>::width);
      for (int64_t j = p.begin; j < p.end; ++j) {
        const IVec<T> at = all_int<T>(Int(j));
        Int *out = w.mask + j * W + v * Real<T>::width;
        IVec<T> inside = (at >= from) & (at < to);
        if (round > 0) inside |= load_int<T>(out);
        store_int<T>(out, inside);
      }
    }
  }
}

template <class T, int N> void mask_allow(Work<T> &w, const Panel &p) {
  constexpr int W = N * Real<T>::width;
  const int64_t stride = w.call->allow.stride[2];
  for (int i = 0; i < W; ++i) {
    const char *from = w.lane[p.lane + i].allow + w.first * stride;
    typename Real<T>::Int *mask = w.mask + i;
    for (int64_t j = p.begin; j < p.end; ++j)
      if (mask[j * W] && !from[j * stride]) mask[j * W] = 0;
  }
}

template <class T, int N> void mask_bias(Work<T> &w, const Panel &p) {
  constexpr int W = N * Real<T>::width;
  const int64_t stride = w.call->bias.stride[2];
  with_element<T>(w.call->bias.dtype, [&](auto source) {
    for (int i = 0; i < W; ++i) {
      Lane<T> &lane = w.lane[p.lane + i];
      const char *from = lane.bias + w.first * stride;
      typename Real<T>::Int *mask = w.mask + i;
      T *bias = w.bias + i;
      for (int64_t j = p.begin; j < p.end; ++j) {
        T b = mask[j * W] ? T(decltype(source)::read(from + j * stride)) : T(0);
        if (__builtin_expect(!finite(b), 0)) {
          if (b == -Real<T>::infinity)
            mask[j * W] = 0;
          else
            lane.flag |= QKV_NONFINITE;
          b = 0;
        }
        bias[j * W] = b;
      }
    }
  });
}

// Sets ALLOWED for the lanes that may read a key; answers whether any may.
template <class T, int N> bool note_allowed(Work<T> &w, const Panel &p) {
  constexpr int width = Real<T>::width;
  bool some = false;
  for (int v = 0; v < N; ++v) {
    IVec<T> seen = {};
    for (int64_t j = p.begin; j < p.end; ++j) seen |= load_int<T>(w.mask + (j * N + v) * width);
    if (!any<T>(seen)) continue;
    some = true;
    for (int i = 0; i < width; ++i)
      if (seen[i]) w.lane[p.lane + v * width + i].flag |= QKV_ALLOWED;
  }
  return some;
}

}  // namespace
