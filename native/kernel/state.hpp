// The running state (max, sum, mix) of a split, and the one merge of two states.
#pragma once
#include "score.hpp"

namespace {

template <class T> QKV_INLINE Vec<T> clamp_finite(Vec<T> x) {
  const Vec<T> top = all<T>(Real<T>::largest);
  return larger<T>(-top, x < top ? x : top);
}

template <class T> void open_state(T *max, T *sum, T *mix, int64_t lanes, int64_t E) {
  for (int64_t i = 0; i < lanes; ++i) max[i] = -Real<T>::infinity, sum[i] = 0;
  for (int64_t i = 0; i < lanes * E; ++i) mix[i] = 0;
}

// A mixture that overflowed on the way although all its operands are finite: again from the row's own keys, with the
// values made small.
template <class T> __attribute__((noinline)) void remix(Work<T> &w, const Panel &p, int index, int64_t split_first, T max, T sum) {
  const qkv_call *call = w.call;
  const int64_t W = p.vectors * Real<T>::width, E = call->E;
  T *mix = w.mix + p.lane * E + index, *wide = w.row_buffer;
  for (int64_t e = 0; e < E; ++e) wide[e] = 0;
  const RowKeys &row = w.row[w.lane[p.lane + index].row];
  const int64_t split_last = split_first + call->split;
  for (int64_t k = 0; k < row.count; ++k)
    for (int64_t j = most(row.low(k), split_first); j < least(row.high(k), split_last); ++j) {
      const T s = score_of_pair(w, p, index, j);
      if (!(s > -Real<T>::infinity) || (w.left_out && w.left_out[p.lane + index] == j)) continue;
      const T weight = exponential1<T>(s - max);
      const char *value = w.value_row(j);
      for (int64_t e = 0; e < E; ++e)
        if (!finite(mix[e * W]))
          wide[e] = fma1(weight, read_element<T>(call->value.dtype, value + e * call->value.stride[2]) * T(0x1p-64), wide[e]);
    }
  for (int64_t e = 0; e < E; ++e)
    if (!finite(mix[e * W])) {
      T x = wide[e] / sum * T(0x1p64);
      if (!(x < Real<T>::largest)) x = Real<T>::largest;
      if (!(x > -Real<T>::largest)) x = -Real<T>::largest;
      mix[e * W] = x;
    }
}

// Ends a split: mix becomes the weighted mean. False if values that nobody looked at seem not to be finite; then the split has
// to be done again.
template <class T, int N> bool close_split(Work<T> &w, const Panel &p, int64_t split_first) {
  constexpr int width = Real<T>::width, W = N * width;
  const int64_t E = w.call->E;
  for (int v = 0; v < N; ++v) {
    const T *sum = w.sum + p.lane + v * width;
    T *mix = w.mix + p.lane * E + v * width;
    const Vec<T> l = load(sum), by = l == Vec<T>{} ? all<T>(1) : l;
    Vec<T> odd = {};
    for (int64_t e = 0; e < E; ++e) {
      const Vec<T> mean = load(mix + e * W) / by;
      odd = fma(mean, Vec<T>{}, odd);
      store(mix + e * W, mean);
    }
    if (__builtin_expect(!any<T>(odd != odd), 1)) continue;
    if (!w.checked) return false;
    for (int i = 0; i < width; ++i) {
      const Lane<T> &lane = w.lane[p.lane + v * width + i];
      if (odd[i] == 0 || sum[i] == 0 || ((lane.flag | lane.query_flag) & (QKV_NONFINITE | QKV_OVERFLOW))) continue;
      remix(w, p, v * width + i, split_first, w.max[p.lane + v * width + i], sum[i]);
    }
  }
  return true;
}

// total = merge(total, part), lane by lane. An empty state (max -inf, sum 0, mix 0) is the exact identity on either
// side: its weight is 0 and the other's is sum / sum = 1.
template <class T> void merge_state(T *max_a, T *sum_a, T *mix_a, const T *max_b, const T *sum_b, const T *mix_b, int64_t lanes,
                 int64_t E) {
  constexpr int width = Real<T>::width;
  const Vec<T> none = all<T>(-Real<T>::infinity);
  for (int64_t i = 0; i < lanes; i += width) {
    const Vec<T> ma = load(max_a + i), mb = load(max_b + i);
    const Vec<T> m = larger<T>(ma, mb), base = m == none ? Vec<T>{} : m;
    const Vec<T> wa = load(sum_a + i) * exponential<T>(ma - base), wb = load(sum_b + i) * exponential<T>(mb - base);
    const Vec<T> l = wa + wb, by = l == Vec<T>{} ? all<T>(1) : l, fa = wa / by, fb = wb / by;
    store(max_a + i, m), store(sum_a + i, l);
    for (int64_t e = 0; e < E; ++e) {
      const int64_t at = e * lanes + i;
      store(mix_a + at, clamp_finite<T>(fma(load(mix_a + at), fa, load(mix_b + at) * fb)));
    }
  }
}

}  // namespace
