// One tile of queries on its way back: what it holds, how it is packed, and what one block of keys does to it.
//
// The arithmetic of a pair, beside that of the forward pass (attend.hpp), with do the gradient of the output:
//   delta = Σ fma(o[e], do[e]) - dlse          p = exp(s - lse)                dp = Σ fma(v[e], do[e])
//   ds = p (dp - delta), times 1 - tanh² under a softcap
//   dq[d] = Σ_j fma(k[d], ds) over ascending keys, times scale at the end;  dk[d] = Σ fma(ds, q[d]) and dv[e] = Σ fma(p, do[e])
//   over ascending rows, the heads of a group side by side within a row, q scaled.
// Forbidden pairs have p = 0 and ds = 0 and meet finite stand-ins, so skipping them changes no bit. A row that is lost, or
// whose do is not finite, is packed as zeros with p = 0; whom it may reach is made NaN afterwards, and nobody else.
#pragma once
#include "../backward.h"
#include "../runtime.h"
#include "backward_product.hpp"
#include "exponential.hpp"
#include "pack.hpp"
#include "range.hpp"

namespace {

// Hands out aligned pieces of one allocation; with a null base it only measures.
struct Pieces {
  char *base;
  size_t used;
  bool overflow;
  template <class U> U *take(int64_t a, int64_t b = 1, int64_t c = 1) {
    int64_t count = 0;
    size_t bytes = 0;
    if (__builtin_mul_overflow(a, b, &count) || __builtin_mul_overflow(count, c, &count) ||
        __builtin_mul_overflow(size_t(count), sizeof(U), &bytes) || bytes > SIZE_MAX / 8 || used > SIZE_MAX / 8) {
      overflow = true;
      return nullptr;
    }
    U *piece = base ? (U *)(base + used) : nullptr;
    used += (bytes + kAlign - 1) / kAlign * kAlign;
    return piece;
  }
};

template <class T> struct BackLane {
  const char *bias, *allow;  // element of key 0
  char *dbias;
  int64_t position;
  T slope;  // minus the alibi slope of the head
  T base, delta;
  int32_t row, head;
  bool real, bad, allowed;
};

template <class T> struct BackTile {
  typedef typename Real<T>::Int Int;
  static constexpr int width = Real<T>::width, W = kLanes<T>;
  const qkv_backward *back;
  const qkv_call *call;
  int64_t heads, tile_rows, lanes, block;
  bool want_query, want_key;

  // The tile at hand.
  int64_t n, g, row0, rows, used, panels;
  bool any_bad;
  RowKeys *row;
  BackLane<T> *lane;
  T *query, *query_strip;  // scaled: per panel [D][W], per strip [lanes][W]
  T *seed, *seed_strip;    // do likewise
  T *dquery;               // per panel [D][W]
  T *buffer;               // one row

  // The block at hand: keys [first, first + count).
  int64_t first, count;
  T *key, *value;
  uint8_t *flag;  // a key's row is not finite; then: a lost row may read the key
  T *weight, *change;  // p and ds, per panel [block][W]
  int32_t *active;
  int64_t actives;
  // The panel at hand: keys [begin, end) of the block.
  int64_t begin, end;
  bool full;
  T *bend, *bias;
  Int *mask;

  void lay_out(Pieces *pieces) {
    const int64_t D = call->D, E = call->E, most_panels = lanes / W;
    row = pieces->take<RowKeys>(tile_rows);
    lane = pieces->take<BackLane<T>>(lanes);
    query = pieces->take<T>(lanes, D), query_strip = pieces->take<T>(lanes, (D + W - 1) / W * W);
    seed = pieces->take<T>(lanes, E), seed_strip = pieces->take<T>(lanes, (E + W - 1) / W * W);
    dquery = pieces->take<T>(lanes, D);
    buffer = pieces->take<T>(D > E ? D : E, 2);
    key = pieces->take<T>(block, D), value = pieces->take<T>(block, E);
    flag = pieces->take<uint8_t>(block);
    weight = pieces->take<T>(lanes, block), change = pieces->take<T>(lanes, block);
    active = pieces->take<int32_t>(most_panels);
    bend = pieces->take<T>(call->softcap > 0 ? block : 0, W);
    bias = pieces->take<T>(call->bias.base ? block : 0, W);
    mask = pieces->take<Int>(block, W);
  }

  const char *element(const qkv_operand &o, int64_t head, int64_t i) const {
    return o.base + o.batch_offset[n] + head * o.stride[0] + i * o.stride[1];
  }
  int64_t index(const BackLane<T> &l) const { return (n * call->H + l.head) * call->L + row0 + l.row; }

  // Rows and lanes; keys outside [floor, limit) are left to other tasks.
  void open(int64_t n_, int64_t g_, int64_t row0_, int64_t rows_, int64_t floor, int64_t limit) {
    n = n_, g = g_, row0 = row0_, rows = rows_;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = n * call->range_batch + (row0 + r) * call->K;
      row[r].start(call->lo + at, call->hi + at, call->K, most(floor, 0), least(limit, call->S));
    }
    used = rows * heads, panels = (used + W - 1) / W, any_bad = false;
    for (int64_t i = 0; i < panels * W; ++i) {
      const int64_t at = least(i, used - 1), h = g * heads + at % heads, r = at / heads;
      BackLane<T> &l = lane[i];
      l.row = int32_t(r), l.head = int32_t(h), l.real = i < used, l.bad = l.allowed = false;
      l.position = row0 + r + call->offset[n];
      l.slope = call->slopes ? -T(call->slopes[h]) : T(0);
      l.bias = call->bias.base ? element(call->bias, h, row0 + r) : nullptr;
      l.allow = call->allow.base ? element(call->allow, h, row0 + r) : nullptr;
      l.dbias = back->dbias.base ? const_cast<char *>(element(back->dbias, h, row0 + r)) : nullptr;
    }
  }

  bool any_key() {
    for (int64_t r = 0; r < rows; ++r)
      if (row[r].next(0) != kNone) return true;
    return false;
  }

  void spread(const T *from, int64_t columns, int64_t at, T *panel_form, T *strip_form) {
    const int64_t panel = at / W, i = at % W;
    T *to = panel_form + panel * W * columns + i;
    for (int64_t d = 0; d < columns; ++d) to[d * W] = from[d];
    for (int64_t d = 0; d < columns; d += W) {
      T *strip = strip_form + d * lanes + at * W;
      for (int64_t c = 0; c < W; ++c) strip[c] = d + c < columns ? from[d + c] : T(0);
    }
  }

  void pack() {
    const int64_t D = call->D, E = call->E;
    const T scale = T(call->scale), infinity = Real<T>::infinity;
    T *other = buffer + (D > E ? D : E);
    for (int64_t i = 0; i < panels * W; ++i) {
      BackLane<T> &l = lane[i];
      l.base = infinity, l.delta = 0;
      if (!l.real) {
        for (int64_t d = 0; d < (D > E ? D : E); ++d) buffer[d] = 0;
        spread(buffer, D, i, query, query_strip), spread(buffer, E, i, seed, seed_strip);
        continue;
      }
      const T lse = ((const T *)back->lse)[index(l)], dlse = back->dlse ? ((const T *)back->dlse)[index(l)] : T(0);
      with_element<T>(call->query.dtype, [&](auto source) {
        typedef decltype(source) Source;
        read_row<T, Source>(element(back->doutput, l.head, row0 + l.row), back->doutput.stride[2], E, buffer);
        read_row<T, Source>(element(back->output, l.head, row0 + l.row), back->output.stride[2], E, other);
      });
      l.bad = lse != lse || !finite(dlse) || !finite_row(buffer, E);
      any_bad |= l.bad;
      if (l.bad) {
        for (int64_t e = 0; e < E; ++e) buffer[e] = 0;
      } else {
        T sum = 0;
        for (int64_t e = 0; e < E; ++e) sum = fma1(other[e], buffer[e], sum);
        l.delta = sum - dlse;
        if (lse != -infinity) l.base = lse;
      }
      spread(buffer, E, i, seed, seed_strip);
      with_element<T>(call->query.dtype, [&](auto source) {
        read_row<T, decltype(source)>(element(call->query, l.head, row0 + l.row), call->query.stride[2], D, buffer);
      });
      for (int64_t d = 0; d < D; ++d) buffer[d] = buffer[d] * scale;
      if (l.bad || !finite_row(buffer, D))
        for (int64_t d = 0; d < D; ++d) buffer[d] = 0;
      spread(buffer, D, i, query, query_strip);
    }
    for (int64_t i = 0; want_query && i < panels * W * D; ++i) dquery[i] = 0;
  }

  // The next block with a key that some row may read, at or after `from`: where it ends, or kNone.
  int64_t next_block(int64_t from) {
    int64_t at = kNone;
    for (int64_t r = 0; r < rows; ++r) at = least(at, row[r].next(from));
    if (at == kNone) return kNone;
    const int64_t stop = at / block * block + block;
    int64_t last = at;
    for (int64_t r = 0; r < rows; ++r) {
      row[r].cut(at, stop);
      last = most(last, row[r].end);
    }
    first = at, count = last - at;
    return stop;
  }

  void pack_block() {
    for (int64_t j = 0; j < count; ++j) flag[j] = 0;
    pack_rows<T>(call->key.dtype, element(call->key, g, first), call->key.stride[1], call->key.stride[2], count, call->D, key, flag, 1);
    pack_rows<T>(call->value.dtype, element(call->value, g, first), call->value.stride[1], call->value.stride[2], count, call->E, value, flag, 1);
    for (int64_t j = 0; j < count; ++j) flag[j] = 0;  // which rows they spoil is known from the log-sum-exp
  }

  // Hull of a panel's keys in the block; whether every lane may read all of it.
  void hull(int64_t panel) {
    const int32_t a = lane[panel * W].row, b = lane[panel * W + W - 1].row;
    int64_t low = kNone, high = 0;
    for (int32_t r = a; r <= b; ++r)
      if (row[r].begin < row[r].end) low = least(low, row[r].begin), high = most(high, row[r].end);
    full = low < high;
    for (int32_t r = a; r <= b; ++r) full &= row[r].whole && row[r].begin == low && row[r].end == high;
    begin = low < high ? low - first : 0, end = low < high ? high - first : 0;
  }

  // mask[j][lane] for the panel's keys: ranges, then the caller's array, then a bias of -inf. Whether any pair is allowed.
  bool allow(int64_t panel) {
    BackLane<T> *l = lane + panel * W;
    for (int64_t round = 0;; ++round) {
      alignas(kAlign) Int lo[W], hi[W];
      bool more = false;
      for (int i = 0; i < W; ++i) {
        const RowKeys &keys = row[l[i].row];
        const int64_t k = keys.cursor + round;
        lo[i] = hi[i] = 0;
        if (k >= keys.count) continue;
        const int64_t from = most(keys.low(k), first), to = least(keys.high(k), first + count);
        if (from < to) lo[i] = Int(from - first), hi[i] = Int(to - first);
        more |= from < to || keys.low(k) >= keys.high(k) || round == 0;
      }
      if (round > 0 && !more) break;
      for (int v = 0; v < W; v += width) {
        const IVec<T> from = load_int<T>(lo + v), to = load_int<T>(hi + v);
        for (int64_t j = begin; j < end; ++j) {
          const IVec<T> at = all_int<T>(Int(j));
          IVec<T> inside = (at >= from) & (at < to);
          if (round > 0) inside |= load_int<T>(mask + j * W + v);
          store_int<T>(mask + j * W + v, inside);
        }
      }
    }
    bool some = false;
    for (int i = 0; i < W; ++i) {
      Int seen = 0;
      const int64_t allow_step = call->allow.stride[2], bias_step = call->bias.stride[2];
      if (l[i].allow) {
        const char *from = l[i].allow + first * allow_step;
        for (int64_t j = begin; j < end; ++j)
          if (mask[j * W + i] && !from[j * allow_step]) mask[j * W + i] = 0;
      }
      if (l[i].bias)
        with_element<T>(call->bias.dtype, [&](auto source) {
          const char *from = l[i].bias + first * bias_step;
          for (int64_t j = begin; j < end; ++j) {
            const T b = mask[j * W + i] ? T(decltype(source)::read(from + j * bias_step)) : T(0);
            if (b == -Real<T>::infinity) mask[j * W + i] = 0;
            bias[j * W + i] = finite(b) ? b : T(0);
          }
        });
      for (int64_t j = begin; j < end; ++j) seen |= mask[j * W + i];
      if (seen) l[i].allowed = some = true;
    }
    return some;
  }

  // Softcap, alibi and bias on the scores in `weight`; `bend` takes the softcap's derivative.
  void finish_scores(int64_t panel, T *score) {
    if (call->softcap > 0) {
      const double top = Real<T>::largest, low = Real<T>::smallest;
      const Vec<T> c = all<T>(T(call->softcap > top ? top : call->softcap < low ? low : call->softcap)), one = all<T>(1);
      const Vec<T> small = c * all<T>(sizeof(T) == 8 ? T(0x1p-28) : T(0x1p-14));
      for (int64_t at = begin * W; at < end * W; at += width) {
        const Vec<T> s = load(score + at), t = tangent<T>(s / c);
        store(score + at, select<T>(magnitude<T>(s) < small, s, c * t));
        store(bend + at, one - t * t);
      }
    }
    if (call->slopes)
      for (int i = 0; i < W; ++i) {
        const BackLane<T> &l = lane[panel * W + i];
        for (int64_t j = begin; j < end; ++j) {
          const int64_t distance = l.position - (first + j);
          score[j * W + i] = fma1(l.slope, T(distance < 0 ? -distance : distance), score[j * W + i]);
        }
      }
    if (call->bias.base)
      for (int64_t at = begin * W; at < end * W; at += width) store(score + at, load(score + at) + load(bias + at));
  }

  // Scores become weights and the changes of the output changes of the scores.
  void weigh(int64_t panel, T *p, T *d, bool masked) {
    const BackLane<T> *l = lane + panel * W;
    alignas(kAlign) T bases[W], deltas[W];
    for (int i = 0; i < W; ++i) bases[i] = l[i].base, deltas[i] = l[i].delta;
    const Vec<T> none = all<T>(-Real<T>::infinity), zero = {};
    for (int v = 0; v < W; v += width) {
      const Vec<T> base = load(bases + v), delta = load(deltas + v);
      for (int64_t at = begin * W + v; at < end * W; at += W) {
        Vec<T> s = load(p + at);
        if (masked) s = select<T>(load_int<T>(mask + at), s, none);
        const Vec<T> weight = exponential<T>(s - base);
        store(p + at, weight);
        store(d + at, select<T>(weight == zero, zero, weight * (load(d + at) - delta)));
      }
    }
  }

  void add_bias(int64_t panel, const T *d) {
    const int64_t step = back->dbias.stride[2];
    for (int i = 0; i < W; ++i) {
      const BackLane<T> &l = lane[panel * W + i];
      if (!l.real) continue;
      char *to = l.dbias + first * step;
      for (int64_t j = begin; j < end; ++j) {
        if (!mask[j * W + i]) continue;
        T *sum = (T *)(to + j * step);
        *sum += l.bad ? T(__builtin_nan("")) : d[j * W + i];
      }
    }
  }

  void visit(int64_t panel) {
    const int64_t D = call->D, E = call->E;
    hull(panel);
    if (begin >= end) return;
    const bool masked = !full || call->allow.base || call->bias.base;
    if (masked && !allow(panel)) return;
    T *p = weight + panel * block * W, *d = change + panel * block * W;
    keys_by_lanes<T>(end - begin, D, key + begin * D, query + panel * D * W, p + begin * W);
    keys_by_lanes<T>(end - begin, E, value + begin * E, seed + panel * E * W, d + begin * W);
    finish_scores(panel, p);
    weigh(panel, p, d, masked);
    if (want_query && back->dbias.base) add_bias(panel, d);
    if (call->softcap > 0)
      for (int64_t at = begin * W; at < end * W; at += width) {
        const Vec<T> x = load(d + at);
        store(d + at, select<T>(x == Vec<T>{}, x, x * load(bend + at)));
      }
    for (int i = 0; i < W; ++i) {
      BackLane<T> &l = lane[panel * W + i];
      if (!masked) l.allowed = true;
      if (!l.bad) continue;
      for (int64_t j = begin; j < end; ++j) flag[j] |= uint8_t(!masked || mask[j * W + i]);
    }
    if (want_query) columns_by_lanes<T>(end - begin, D, key + begin * D, d + begin * W, dquery + panel * D * W);
    if (!want_key) return;
    for (int64_t at = 0; at < begin * W; ++at) p[at] = d[at] = 0;
    for (int64_t at = end * W; at < count * W; ++at) p[at] = d[at] = 0;
    active[actives++] = int32_t(panel);
  }

  void give_keys() {
    const qkv_operand &to_key = back->dkey, &to_value = back->dvalue;
    T *dkey = (T *)const_cast<char *>(element(to_key, g, first)), *dvalue = (T *)const_cast<char *>(element(to_value, g, first));
    const int64_t step_key = to_key.stride[1] / int64_t(sizeof(T)), step_value = to_value.stride[1] / int64_t(sizeof(T));
    if (actives) {
      lanes_by_columns<T>(count, call->E, {weight, seed_strip, block * W, active, actives}, lanes * W, dvalue, step_value);
      lanes_by_columns<T>(count, call->D, {change, query_strip, block * W, active, actives}, lanes * W, dkey, step_key);
    }
    for (int64_t j = 0; any_bad && j < count; ++j) {
      if (!flag[j]) continue;
      for (int64_t d = 0; d < call->D; ++d) dkey[j * step_key + d] = T(__builtin_nan(""));
      for (int64_t e = 0; e < call->E; ++e) dvalue[j * step_value + e] = T(__builtin_nan(""));
    }
  }

  void give_queries() {
    const T scale = T(call->scale), nan = T(__builtin_nan(""));
    for (int64_t i = 0; i < used; ++i) {
      const BackLane<T> &l = lane[i];
      const bool lost = l.bad && l.allowed;
      T *to = (T *)const_cast<char *>(element(back->dquery, l.head, row0 + l.row));
      const T *from = dquery + i / W * W * call->D + i % W;
      for (int64_t d = 0; d < call->D; ++d) to[d] = lost ? nan : from[d * W] * scale;
      ((T *)back->delta)[index(l)] = lost ? nan : l.delta;
    }
  }
};

}  // namespace
