// A tile from start to end: rows and queries in, blocks of keys in ascending order, results out.
#pragma once
#include "few.hpp"

namespace {

// Calls f with the panel's number of vectors as a constant.
template <class F> QKV_INLINE void with_vectors(int vectors, F f) {
  if (vectors == 1)
    f(Count<1>());
  else
    f(Count<2>());
}

QKV_INLINE float log1(float x) { return __builtin_logf(x); }
QKV_INLINE double log1(double x) { return __builtin_log(x); }

// A sink beyond the compute type is its largest number.
template <class T> QKV_INLINE T within_range(double x) {
  const double top = Real<T>::largest;
  return T(x > top ? top : x < -top ? -top : x);
}

QKV_INLINE int64_t origin_of(const qkv_call *call, int64_t n, int64_t i) {
  return call->origin ? call->origin[n * call->origin_batch + i] : 0;
}

// Rows, lanes and panels of the tile; keys outside [floor, limit) are left to other tasks.
template <class T> void open_tile(Work<T> &w, int64_t n, int64_t g, int64_t row0, int64_t rows, int64_t floor, int64_t limit) {
  const qkv_call *call = w.call;
  w.n = n, w.g = g, w.row0 = row0, w.rows = rows;
  w.origin = origin_of(call, n, row0);
  w.checked = true, w.key_unseen = false, w.last = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = n * call->range_batch + (row0 + r) * call->K;
    w.row[r].start(call->lo + at, call->hi + at, call->K, most(floor, 0), least(limit, call->S));
    for (int64_t k = 0; k < call->K; ++k)
      if (w.row[r].low(k) < w.row[r].high(k)) w.last = most(w.last, w.row[r].high(k));
    if (call->K == 1) w.low[r] = int32_t(w.row[r].low(0)), w.high[r] = int32_t(w.row[r].high(0));
  }
  const int64_t used = rows * w.heads, width = Real<T>::width;
  w.panels = 0;
  for (int64_t lane = 0; lane < used; lane += w.panel[w.panels++].vectors * width) {
    w.panel[w.panels].lane = lane;
    w.panel[w.panels].vectors = used - lane > width ? 2 : 1;
  }
  const bool dense_rows = call->key.stride[2] == element_size(call->key.dtype) && call->value.stride[2] == element_size(call->value.dtype);
  w.few = used <= kFewRows<T> && dense_rows ? used : 0;
  const Panel &last = w.panel[w.panels - 1];
  for (int64_t i = 0; i < last.lane + last.vectors * width; ++i) {
    const int64_t at = least(i, used - 1), r = at / w.heads, h = g * w.heads + at % w.heads, row = row0 + r;
    Lane<T> &lane = w.lane[i];
    lane.row = int32_t(r), lane.head = int32_t(h);
    lane.flag = lane.query_flag = 0;
    lane.position = row + call->offset[n];
    lane.slope = call->slopes ? -T(call->slopes[h]) : T(0);
    lane.bias = lane.allow = nullptr;
    if (call->bias.base)
      lane.bias = call->bias.base + call->bias.batch_offset[n] + h * call->bias.stride[0] + row * call->bias.stride[1];
    if (call->allow.base)
      lane.allow = call->allow.base + call->allow.batch_offset[n] + h * call->allow.stride[0] + row * call->allow.stride[1];
  }
}

// The queries of one vector of lanes as columns, `step` numbers from one d to the next.
template <class T, class Source> void query_columns(const Work<T> &w, const Lane<T> *lane, T *to, int64_t step) {
  constexpr int width = Real<T>::width;
  const qkv_operand &o = w.call->query;
  const int64_t D = w.call->D, whole = o.stride[2] == Source::size ? D / width * width : 0;
  const char *row[width];
  for (int i = 0; i < width; ++i)
    row[i] = o.base + o.batch_offset[w.n] + lane[i].head * o.stride[0] + (w.row0 + lane[i].row) * o.stride[1];
  for (int64_t d = 0; d < whole; d += width) transpose<T, Source>(row, d * Source::size, to + d * step, step);
  for (int i = 0; i < width; ++i)
    for (int64_t d = whole; d < D; ++d) to[d * step + i] = T(Source::read(row[i] + d * o.stride[2]));
}

// Queries, scaled and transposed. One that is not finite, or not after scaling, is replaced by zeros: its row is lost
// anyway, once it turns out that it may read a key at all.
template <class T> void pack_queries(Work<T> &w) {
  const int64_t D = w.call->D, width = Real<T>::width;
  for (int64_t q = 0; q < w.panels; ++q) {
    const Panel &p = w.panel[q];
    const int64_t W = p.vectors * width;
    w.panel[q].careful = false;
    for (int v = 0; v < p.vectors; ++v) {
      Lane<T> *const lane = w.lane + p.lane + v * width;
      T *const to = w.query + p.lane * D + v * width;
      with_element<T>(w.call->query.dtype, [&](auto source) { query_columns<T, decltype(source)>(w, lane, to, W); });
      T *const pairs = w.query_pairs + p.lane * (D / 2) + v * width;
      if (QKV_PAIRS && w.pairs) pair_columns<T>(to, D, W, pairs, lane);
      Vec<T> odd = {}, odd_scaled = {};
      for (int64_t d = 0; d < D; ++d) {
        const Vec<T> raw = load(to + d * W), scaled = raw * all<T>(w.scale);
        odd = fma(raw, Vec<T>{}, odd), odd_scaled = fma(scaled, Vec<T>{}, odd_scaled);
        store(to + d * W, scaled);
      }
      for (int i = 0; i < width; ++i) {
        if (odd[i] == 0 && odd_scaled[i] == 0) continue;
        lane[i].query_flag = odd[i] == 0 ? QKV_OVERFLOW : QKV_NONFINITE;
        for (int64_t d = 0; d < D; ++d) to[d * W + i] = 0;
        for (int64_t d = 0; w.pairs && d < D / 2; ++d) pairs[d * W + i] = 0;
      }
      for (int i = 0; w.pairs && i < width; ++i) w.panel[q].careful |= lane[i].careful;
    }
  }
  for (int64_t i = 0; w.pairs && i < w.few; ++i)
    if (w.lane[i].careful) w.few = 0;
  if (w.few) few_queries(w);
}

// What the rows of vector v may read of the block at hand: all of them together, and each of them.
template <class T> QKV_INLINE void cut_vector(const Work<T> &w, Panel &p, int v) {
  const Lane<T> *const lane = w.lane + p.lane + v * Real<T>::width;
  const int32_t first = lane[0].row, last = lane[Real<T>::width - 1].row;
  int32_t low = INT32_MAX, high = 0, inner_low = 0, inner_high = INT32_MAX;
  for (int32_t r = first; r <= last; ++r) {
    const int32_t from = w.from[r], to = w.to[r];  // an empty row ends at 0
    inner_low = from > inner_low ? from : inner_low, inner_high = to < inner_high ? to : inner_high;
    const int32_t some = from < to ? from : INT32_MAX;
    low = some < low ? some : low, high = to > high ? to : high;
  }
  if (w.call->K > 1)
    for (int32_t r = first; r <= last; ++r) p.ranged &= w.whole[r] || w.from[r] >= w.to[r];
  if (low >= high) low = high = 0;
  const bool some = inner_low < inner_high;
  p.from[v] = low, p.to[v] = high;
  p.clear_from[v] = some ? inner_low : high, p.clear_to[v] = some ? inner_high : high;
}

// The first key at or after `from` that some row may read, or kNone. Calls come with ascending `from`.
template <class T> int64_t next_key(Work<T> &w, int64_t from) {
  int64_t at = kNone;
  if (w.call->K != 1) {
    for (int64_t r = 0; r < w.rows; ++r) at = least(at, w.row[r].next(from));
    return at;
  }
  if (from >= INT32_MAX) return kNone;
  const int32_t here = int32_t(from);
  int32_t found = INT32_MAX;
  for (int64_t r = 0; r < w.rows; ++r) {
    const int32_t low = w.low[r] > here ? w.low[r] : here, one = low < w.high[r] ? low : INT32_MAX;
    found = one < found ? one : found;
  }
  return found == INT32_MAX ? kNone : found;
}

// Cuts the rows to the block [start, stop), numbered from w.first. Answers where the last of their keys ends.
template <class T> int64_t cut_rows_to(Work<T> &w, int64_t start, int64_t stop) {
  if (w.call->K != 1) {
    int64_t end = 0;
    for (int64_t r = 0; r < w.rows; ++r) {
      RowKeys &row = w.row[r];
      row.cut(start, stop);
      const bool some = row.begin < row.end;
      w.from[r] = some ? int32_t(row.begin - w.first) : 0, w.to[r] = some ? int32_t(row.end - w.first) : 0;
      w.whole[r] = row.whole;
      end = most(end, row.end);
    }
    return end;
  }
  const int32_t first = int32_t(w.first), low = int32_t(most(start, 0)), high = int32_t(least(stop, INT32_MAX));
  int32_t end = 0;
  for (int64_t r = 0; r < w.rows; ++r) {
    const int32_t from = w.low[r] > low ? w.low[r] : low, to = w.high[r] < high ? w.high[r] : high;
    const bool some = from < to;
    w.from[r] = some ? from - first : 0, w.to[r] = some ? to - first : 0;
    end = some && to > end ? to : end;
  }
  return end;
}

// Finds the next block with a key that some row may read, at or after `from`, and cuts rows and panels to it. Answers
// where the block ends, or kNone. Keys are numbered from w.first, which is moved to the hull of all rows in steps of
// four, or of a tile's depth, so that the strands of the sum and the sums in tiles stay the same; so a block costs memory for
// the keys it really has.
template <class T> int64_t next_block(Work<T> &w, int64_t from) {
  const int64_t at = next_key(w, from);
  if (at == kNone) return kNone;
  const int64_t start = w.origin + floor_div(at - w.origin, w.call->block) * w.call->block;
  const int64_t stop = start + w.call->block;
  const int64_t step = w.tile_mixture ? kTileDepth : 4;
  w.first = start + (at - start) / step * step;
  const int64_t end = cut_rows_to(w, start, stop);
  w.begin = at - w.first, w.end = w.count = end - w.first;

  for (int64_t q = 0; q < w.panels; ++q) {
    Panel &p = w.panel[q];
    p.ranged = true;
    for (int v = 0; v < p.vectors; ++v) cut_vector(w, p, v);
    const int other = p.vectors - 1;
    if (other) {
      // Neither begins before the first nor ends before it; a vector without keys stands where the other's end.
      if (p.from[0] >= p.to[0]) p.from[0] = p.to[0] = p.from[1];
      if (p.from[1] >= p.to[1]) p.from[1] = p.to[1] = p.to[0];
      p.from[0] = least(p.from[0], p.from[1]), p.to[1] = most(p.to[1], p.to[0]);
    }
    p.begin = p.from[0], p.end = p.to[other];
    p.full = p.ranged && p.begin < p.end;
    for (int v = 0; v < p.vectors; ++v) p.full &= p.clear_from[v] == p.begin && p.clear_to[v] == p.end;
  }
  return stop;
}

// Whether the packed rows are just as the caller has them: then they are read there.
template <class T> bool as_packed(const qkv_operand &o, int64_t count) {
  return element_size(o.dtype) == int64_t(sizeof(T)) && o.stride[2] == int64_t(sizeof(T)) &&
         o.stride[1] == count * int64_t(sizeof(T));
}

// Rows [w.begin, w.end) of one operand, in the compute type; finite, unless they may stay `unseen` and lie as they are read.
template <class T>
const T *ready_rows(Work<T> &w, const qkv_operand &o, const char *from, int64_t count, T *to, uint8_t mark, bool *unseen = nullptr) {
  const int64_t rows = w.end - w.begin;
  if (as_packed<T>(o, count) && (uintptr_t)from % sizeof(T) == 0) {
    if (unseen) *unseen = true;
    if (unseen || finite_row((const T *)from, rows * count)) return (const T *)from - w.begin * count;
  }
  w.any_bad |= pack_rows<T>(o.dtype, from, o.stride[1], o.stride[2], rows, count, to + w.begin * count, w.bad + w.begin, mark);
  return to;
}

// The block's keys, which nobody looked at; what was found in its values stands.
template <class T> void look_at_keys(Work<T> &w) {
  w.key_unseen = false;
  w.key_rows = ready_rows(w, w.call->key, w.key_row(w.first + w.begin), w.call->D, w.key, 1);
}

template <class T> void ready_keys(Work<T> &w, bool look = true) {
  for (int64_t j = w.begin; j < w.end; ++j) w.bad[j] = 0;
  w.any_bad = w.key_unseen = false;
  if (QKV_PAIRS && w.pairs)
    ready_pairs(w);
  else
    w.key_rows = ready_rows(w, w.call->key, w.key_row(w.first + w.begin), w.call->D, w.key, 1, look ? nullptr : &w.key_unseen);
}

template <class T> void pack_block(Work<T> &w, bool look = true) {
  bool unseen = false;
  ready_keys(w, look);
  if (QKV_TILES && w.tile_mixture)
    ready_values(w);
  else
    w.value_rows = ready_rows(w, w.call->value, w.value_row(w.first + w.begin), w.call->E, w.value, 2, look ? nullptr : &unseen);
}

// What the tile reads after the block at hand, which ends at `stop`: the keys of its next one.
template <class T> void look_ahead(Work<T> &w, int64_t stop) {
  const qkv_call *call = w.call;
  const int64_t rows = least(call->block, w.last - stop);
  w.fetch.add(w.value_row(stop), call->E * element_size(call->value.dtype), call->value.stride[1], rows);
  w.fetch.add(w.key_row(stop), call->D * element_size(call->key.dtype), call->key.stride[1], rows);
}

// All rows of the tile meet the block at hand.
template <class T> void visit_block(Work<T> &w) {
  if (w.few) {
    if (__builtin_expect(visit_few(w), 1)) return;
    few_to_panel(w);
  }
  pack_block(w, w.checked);
  Unnoted nobody;
  for (int64_t q = 0; q < w.panels; ++q) {
    const Panel &p = w.panel[q];
    if (p.begin < p.end) with_vectors(p.vectors, [&](auto n) { visit<T, decltype(n)::count>(w, p, nobody); });
  }
  if (w.few) few_from_panel(w);
}

// Ends a split; false if it has to be done again, with every row looked at.
template <class T> bool close_splits(Work<T> &w, int64_t split_first) {
  if (w.few) few_to_panel(w);
  bool good = true;
  for (int64_t q = 0; q < w.panels && good; ++q)
    with_vectors(w.panel[q].vectors, [&](auto n) { good = close_split<T, decltype(n)::count>(w, w.panel[q], split_first); });
  return good;
}

template <class T> void open_states(Work<T> &w, T *max, T *sum, T *mix) {
  const Panel &last = w.panel[w.panels - 1];
  open_state(max, sum, mix, last.lane + last.vectors * Real<T>::width, w.call->E);
  if (w.few)
    for (int64_t i = 0; i < w.few * w.call->E; ++i) w.few_state[i] = 0;
}

template <class T> void merge_states(Work<T> &w, const T *max, const T *sum, const T *mix) {
  for (int64_t q = 0; q < w.panels; ++q) {
    const Panel &p = w.panel[q];
    merge_state(w.total_max + p.lane, w.total_sum + p.lane, w.total_mix + p.lane * w.call->E, max + p.lane, sum + p.lane,
                mix + p.lane * w.call->E, p.vectors * Real<T>::width, w.call->E);
  }
}

// Columns of the panel's total mixture become rows of the caller's type: of vector v the first `lanes`, to to[lane].
template <class T, class Target> void write_rows(const Work<T> &w, const Panel &p, int v, int lanes, char *const *to) {
  constexpr int width = Real<T>::width;
  const int64_t W = p.vectors * width, E = w.call->E, whole = E / width * width;
  const T *const mix = w.total_mix + p.lane * E + v * width;
  alignas(kAlign) T turned[width * width];
  for (int64_t e = 0; e < whole; e += width) {
    const char *row[width];
    for (int i = 0; i < width; ++i) row[i] = (const char *)(mix + (e + i) * W);
    transpose<T, Plain<T>>(row, 0, turned, width);
    for (int i = 0; i < lanes; ++i) {
      const T *from = turned + i * width;
      char *const at = to[i] + e * Target::size;
      if constexpr (Target::size == int(sizeof(T)))
        __builtin_memcpy(at, from, width * sizeof(T));
      else
        for (int k = 0; k < width; ++k) Target::write(at + k * Target::size, typename Target::T(from[k]));
    }
  }
  for (int i = 0; i < lanes; ++i)
    for (int64_t e = whole; e < E; ++e) Target::write(to[i] + e * Target::size, typename Target::T(mix[e * W + i]));
}

// The panel's total mixture times `share`, NaN in the lanes of `gone`.
template <class T> void spoil(const Work<T> &w, const Panel &p, int v, const T *share, const typename Real<T>::Int *gone) {
  constexpr int width = Real<T>::width;
  const int64_t W = p.vectors * width;
  T *const mix = w.total_mix + p.lane * w.call->E + v * width;
  const Vec<T> by = load(share), nan = all<T>(T(__builtin_nan("")));
  const IVec<T> lost = load_int<T>(gone);
  for (int64_t e = 0; e < w.call->E; ++e) store(mix + e * W, select<T>(lost, nan, load(mix + e * W) * by));
}

// Results of one vector of lanes, from the total state and its flags; the bits it met are added to `seen` and `shared`.
template <class T> void finish_vector(Work<T> &w, const Panel &p, int v, int lanes, int32_t &seen, int32_t &shared) {
  constexpr int width = Real<T>::width;
  const qkv_call *call = w.call;
  const int64_t first = p.lane + v * width, E = call->E;
  const T nan = T(__builtin_nan(""));
  alignas(kAlign) T one[width], share[width];
  alignas(kAlign) typename Real<T>::Int lost[width] = {}, gone[width] = {};
  char *mix[width], *output[width];
  bool some_lost = false, some_gone = false;
  for (int i = 0; i < width; ++i) one[i] = share[i] = 1;
  for (int i = 0; i < lanes; ++i) {
    const Lane<T> &lane = w.lane[first + i];
    const int64_t at = (w.n * call->H + lane.head) * call->L + w.row0 + lane.row;
    T max = w.total_max[first + i], sum = w.total_sum[first + i];
    call->status[at] = lane.flag;
    seen |= lane.flag, shared &= lane.flag;
    const bool no = lane.flag & (QKV_NONFINITE | QKV_OVERFLOW);
    if (call->max) ((T *)call->max)[at] = no ? nan : max;
    if (call->sum) ((T *)call->sum)[at] = no ? nan : sum;
    mix[i] = call->mix ? (char *)call->mix + at * E * int64_t(sizeof(T)) : nullptr;
    some_lost |= no, lost[i] = no ? -1 : 0;
    if (!call->output && !call->lse) continue;
    // Nothing but scores that overflowed to -inf is a part like any other in a state; a finished row is lost by it.
    const bool never = no || ((lane.flag & QKV_ALLOWED) && sum == 0);
    some_gone |= never, gone[i] = never ? -1 : 0;
    if (call->sink) {
      const T sink = within_range<T>(call->sink[lane.head]), both = max > sink ? max : sink;
      const T weight = sum * exponential1<T>(max - both), total = weight + exponential1<T>(sink - both);
      share[i] = weight / total, max = both, sum = total;
    }
    if (call->lse) ((T *)call->lse)[at] = never ? nan : sum == 0 ? -Real<T>::infinity : max + log1(sum);
    const int64_t place = call->output_length_first ? (w.n * call->L + w.row0 + lane.row) * call->H + lane.head : at;
    output[i] = !call->output ? nullptr : (char *)call->output + place * E * element_size(call->query.dtype);
  }
  if (call->mix) {
    if (some_lost) spoil(w, p, v, one, lost);
    write_rows<T, Plain<T>>(w, p, v, lanes, mix);
  }
  if (!call->output) return;
  if (some_gone || call->sink) spoil(w, p, v, share, gone);
  with_element<T>(call->query.dtype, [&](auto target) { write_rows<T, decltype(target)>(w, p, v, lanes, output); });
}

template <class T> void finish_tile(Work<T> &w) {
  constexpr int width = Real<T>::width;
  qkv_call *call = const_cast<qkv_call *>(w.call);
  const int64_t used = w.rows * w.heads;
  int32_t seen = 0, shared = 0xff;
  for (int64_t q = 0; q < w.panels; ++q)
    for (int v = 0; v < w.panel[q].vectors; ++v) {
      const int64_t lanes = used - w.panel[q].lane - v * width;
      if (lanes > 0) finish_vector(w, w.panel[q], v, int(least(lanes, width)), seen, shared);
    }
  __atomic_fetch_or(&call->status_any, seen, __ATOMIC_RELAXED);
  __atomic_fetch_and(&call->status_all, shared, __ATOMIC_RELAXED);
}

}  // namespace
