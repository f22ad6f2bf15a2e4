// One panel meets one block of keys: scores, mask, weights, mixture. The state of a lane changes only through keys
// that its row may read; a lane without any in this block keeps its bits, because its alpha is 1 and its weights 0.
#pragma once
#include "mask.hpp"
#include "mixture.hpp"
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

// The same where ranges alone say what is allowed: only where some row of a vector may not read a key is a score looked at
// for whether its own may, and only such scores are stored again.
template <class T, int N> QKV_INLINE bool scan_ranges(const Work<T> &w, const Panel &p, const Spans<N> &span, Vec<T> *top) {
  typedef typename Real<T>::Int Int;
  constexpr int width = Real<T>::width, pace = 4;
  const Vec<T> none = all<T>(-Real<T>::infinity);
  bool odd_seen = false;
  for (int v = 0; v < N; ++v) {
    T *const score = w.score + v * width;
    const auto at = [&](int64_t j) { return score + j * N * width; };
    Vec<T> odd[pace], high[pace];
    for (int i = 0; i < pace; ++i) odd[i] = Vec<T>{}, high[i] = none;
    const int64_t from = span.from[v], to = span.to[v], clear_from = most(from, least(p.clear_from[v], to)),
                  clear_to = most(clear_from, least(p.clear_to[v], to));
    if (clear_from > from || clear_to < to) {
      alignas(kAlign) Int low[width], high_end[width];
      for (int i = 0; i < width; ++i) {
        const int32_t row = w.lane[p.lane + v * width + i].row;
        low[i] = w.from[row], high_end[i] = w.to[row];
      }
      const IVec<T> first = load_int<T>(low), end = load_int<T>(high_end);
      const auto part = [&](int64_t j, int64_t stop) {
        for (; j < stop; ++j) {
          const Vec<T> raw = load(at(j));
          const IVec<T> here = all_int<T>(Int(j));
          const Vec<T> x = select<T>((here >= first) & (here < end), raw, none);
          odd[0] = fma(raw, Vec<T>{}, odd[0]), high[0] = larger<T>(x, high[0]);
          store(at(j), x);
        }
      };
      part(from, clear_from), part(clear_to, to);
    }
    int64_t j = clear_from;
    const auto one = [&](int i) {
      const Vec<T> raw = load(at(j + i));
      odd[i] = fma(raw, Vec<T>{}, odd[i]), high[i] = larger<T>(raw, high[i]);
    };
    for (; j + pace <= clear_to; j += pace) one(0), one(1), one(2), one(3);
    for (; j < clear_to; ++j) one(0);
    top[v] = larger<T>(larger<T>(high[0], high[1]), larger<T>(high[2], high[3]));
    const Vec<T> every = (odd[0] + odd[1]) + (odd[2] + odd[3]);
    odd_seen |= any<T>(every != every);
  }
  return odd_seen;
}

// What a visit tells whoever wants to know more than the mixture (keep.hpp): here nobody.
struct Unnoted {
  static constexpr bool everything = false;  // whether it wants the weights of all keys of the panel from all its lanes
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

template <int N> QKV_INLINE Spans<N> all_keys(const Panel &p) {
  Spans<N> span;
  for (int v = 0; v < N; ++v) span.from[v] = p.begin, span.to[v] = p.end;
  return span;
}

template <class T, int N> QKV_INLINE void products(Work<T> &w, const Panel &p, const Spans<N> &span) {
  if (QKV_PAIRS && w.pairs)
    pair_scores<T, N>(w, p, span);
  else
    scores_of<T, N>(span, w.call->D, w.key_rows, w.query + p.lane * w.call->D, w.score, w.fetch);
}

// The panel's scores with the block at hand, -inf where a pair is forbidden, and the greatest of each lane. Answers
// whether any pair is allowed; `masked`: whether w.mask says which are, else all are.
template <class T, int N> QKV_INLINE bool score_panel(Work<T> &w, const Panel &p, bool &masked, Vec<T> *top) {
  constexpr int width = Real<T>::width, W = N * width;
  const qkv_call *call = w.call;
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

  products<T, N>(w, p, all_keys<N>(p));
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

template <class T> void look_at_keys(Work<T> &w);

// The same, for the keys alone that some row of a vector may read, where nothing but ranges says which; else for all keys.
template <class T, int N> bool score_spans(Work<T> &w, const Panel &p, Spans<N> &span, Vec<T> *top) {
  constexpr int width = Real<T>::width;
  const qkv_call *call = w.call;
  span = all_keys<N>(p);
  const bool dot = !(call->softcap > 0 || call->slopes), ranged = p.ranged && !call->allow.base && !call->bias.base;
  // A value that is bad sends the panel the way where keys have been looked at.
  if (__builtin_expect(w.key_unseen && (!(ranged && dot) || w.any_bad), 0)) look_at_keys(w);
  if (!ranged || __builtin_expect(w.any_bad, 0)) {
    bool masked;
    return score_panel<T, N>(w, p, masked, top);
  }
  for (int i = 0; i < N * width; ++i) {
    Lane<T> &lane = w.lane[p.lane + i];
    if (p.full || w.from[lane.row] < w.to[lane.row]) lane.flag |= QKV_ALLOWED;
  }
  // Tiles take all lanes of the panel at once.
  const bool tiled = w.tile_scores || w.tile_mixture;
  for (int v = 0; v < N && dot && !tiled; ++v) span.from[v] = p.from[v], span.to[v] = p.to[v];
  products<T, N>(w, p, span);
  if (!dot) {
    if (any_odd<T, N>(w, p)) {
      mask_ranges<T, N>(w, p);
      settle<T, N>(w, p, true, true);
    }
    if (call->softcap > 0) apply_softcap<T, N>(w, p);
    if (call->slopes) apply_alibi<T, N>(w, p);
  }
  if (__builtin_expect((scan_ranges<T, N>(w, p, span, top)), 0)) {
    if (w.key_unseen) {
      look_at_keys(w);
      return score_spans<T, N>(w, p, span, top);
    }
    mask_ranges<T, N>(w, p);
    settle<T, N>(w, p, true, dot);
    scan_scores<T, N>(w, p, true, top);
  }
  return true;
}

template <class T, int N, class Note> void visit(Work<T> &w, const Panel &p, Note &note) {
  constexpr int width = Real<T>::width, W = N * width;
  const int64_t E = w.call->E;
  Vec<T> top[N];
  Spans<N> span = all_keys<N>(p);
  if constexpr (Note::everything) {
    bool masked;
    if (!score_panel<T, N>(w, p, masked, top)) return;
  } else {
    if (!score_spans<T, N>(w, p, span, top)) return;
  }
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
    const Vec<T> added = weigh<T>(w.score + v * width, W, span.from[v], span.to[v], base, note);
    note.close(p.lane + v * width, before, base, shrink, load(sum));
    store(sum, fma(load(sum), shrink, added));
  }
  if (QKV_TILES && w.tile_mixture)
    mix_tiles<T, N>(w, p, alpha);
  else
    mix_values<T, N>(span, E, w.value_rows, w.score, w.mix + p.lane * E, alpha, w.fetch);
}

}  // namespace
