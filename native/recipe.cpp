// A recipe is a call without its arrays: sizes, ranges and plan are read once and owned. Running it checks again all
// that would crash the process, so a wrong array is refused and never read past its end.
#include "recipe.h"

#include <cstdlib>
#include <cstring>

#include "call.h"

namespace {

// Below so many multiplications other threads of Python would not be served sooner if the lock were let go.
constexpr double kBrief = 1 << 16;

// Nothing was done: the long way has to have its say.
constexpr int kLongWay = -1;

template <class U> std::vector<U> owned(const Buffer &b, int64_t count) {
  const U *from = reinterpret_cast<const U *>(b.data());
  return b ? std::vector<U>(from, from + count) : std::vector<U>();
}

// Where the keys of a growing sequence end, and where its queries stand, told anew in every run.
struct Held {
  const Buffer lengths, stand, firsts;  // keys of each sequence; position of row 0, plus `back`; first key still there
  int64_t back, keys, start, threads;   // start: the first key that the arrays hold
  bool spread;

  explicit Held(const nb::tuple &t)
      : lengths(handle(t, 0), "lengths"), stand(handle(t, 1), "stand"), firsts(handle(t, 3), "firsts"),
        back(number(t, 2)), keys(number(t, 4)), start(number(t, 5)), threads(number(t, 6)), spread(number(t, 7) != 0) {}

  static nb::handle handle(const nb::tuple &t, size_t i) {
    if (t.size() != 8) refuse("held", "a tuple of eight");
    return nb::handle(t[i].ptr());
  }
  static int64_t number(const nb::tuple &t, size_t i) { return nb::cast<int64_t>(handle(t, i)); }
};

class Recipe {
 public:
  // The arrays among the call's parts are looked at for their sizes alone; those of a run have `axes` axes, 2 or as many as
  // the query's here. `reach`: None, or how many keys before and after its own a row may read (-1: all), for a recipe whose
  // keys are held by a growing cache.
  Recipe(int level, nb::tuple parts, int axes, nb::object reach) : axes_(axes) {
    const Given given(level, parts);
    attend_ = given.level->attend;
    call_ = given.call, dtype_ = given.dtype, compute_ = given.compute;
    const int all = given.query.axes();
    if (axes != all && !(axes == 2 && all == 3)) refuse("axes", "2 or those of the query");
    for (int axis = 0; axis < all - 3; ++axis) batch_.push_back(given.query.size(axis));
    if (axes == 2 && (call_.H != 1 || call_.G != 1)) refuse("H and G", "1 for two axes");
    has_bias_ = bool(given.bias), has_allow_ = bool(given.allow), has_sink_ = bool(given.sink);
    bias_dtype_ = call_.bias.dtype;
    call_.query = call_.key = call_.value = call_.bias = call_.allow = qkv_operand();
    call_.sink = nullptr;
    slopes_own_ = owned<double>(given.slopes, call_.H), offset_own_ = owned<int64_t>(given.offset, call_.N);
    call_.slopes = given.slopes ? slopes_own_.data() : nullptr, call_.offset = offset_own_.data();
    grows_ = !reach.is_none();
    if (grows_) {
      if (has_bias_ || has_allow_) refuse("bias and allow", "left out where the keys are held by a cache");
      const nb::tuple sides = nb::cast<nb::tuple>(reach);
      left_ = nb::cast<int64_t>(sides[0]), right_ = nb::cast<int64_t>(sides[1]);
      for (int64_t side : {left_, right_})
        if (side < -1 || side > INT64_MAX / 8) refuse("reach", "numbers of keys");
      call_.K = 1, call_.range_batch = call_.L, call_.origin = nullptr;
      return;
    }
    lo_own_ = owned<int32_t>(given.lo, given.lo.size(0) * call_.L * call_.K);
    hi_own_ = owned<int32_t>(given.hi, given.lo.size(0) * call_.L * call_.K);
    call_.lo = lo_own_.data(), call_.hi = hi_own_.data();
    if (given.origin) origin_own_ = owned<int32_t>(given.origin, given.origin.size(0) * call_.L);
    call_.origin = given.origin ? origin_own_.data() : nullptr;
  }
  Recipe(const Recipe &) = delete;  // call_ points into it

  // Attention into `output`, with the axes of the query, heads or length first in memory, and into `lse` (N·H·L numbers) and
  // `states` (a row of them for each of maximum and sum) where given. Arrays that are no buffers are read by their library's
  // `exchange` table. Answers 0, or what some rows met: 1 no allowed key, 2, 4 and 8 as in qkv_status; or -1 without having
  // done anything, where the long way has to say what is wrong or QKV_ENGINE asks for another engine.
  int run(nb::handle query_, nb::handle key_, nb::handle value_, nb::handle output_, nb::handle lse_, nb::handle states_,
          nb::handle bias_, nb::handle allow_, nb::handle sink_, nb::handle exchange, nb::handle held_) const {
    const char *engine = std::getenv("QKV_ENGINE");
    if (engine && *engine && std::strcmp(engine, "native") != 0) return kLongWay;
    const dlpack::Exchange *table = exchange.is_none() ? nullptr : dlpack::exchange(exchange.ptr());
    if (!table && !exchange.is_none()) return kLongWay;
    const Buffer query = view(query_, "query", table), key = view(key_, "key", table), value = view(value_, "value", table),
                 bias = view(bias_, "bias", table), allow = view(allow_, "allow", table), sink = view(sink_, "sink", table);
    if (!query || !key || !value || bool(bias) != has_bias_ || bool(allow) != has_allow_ || bool(sink) != has_sink_ ||
        held_.is_none() == grows_)
      return kLongWay;
    const Buffer output(output_, "output", true), lse(lse_, "lse", true), states(states_, "states", true);

    qkv_call call = call_;
    Places places;
    std::vector<int32_t> lo, hi, origin;
    std::vector<int64_t> offset;
    call.query = place(query, call.H, call.L, call.D, places);
    if (grows_) {
      const Held held(nb::borrow<nb::tuple>(held_));
      if (!read_held(held, call, lo, hi, origin, offset)) return kLongWay;
      call.key = place_held(key, call.S, call.D, places), call.value = place_held(value, call.S, call.E, places);
    } else {
      call.key = place(key, call.G, call.S, call.D, places), call.value = place(value, call.G, call.S, call.E, places);
    }
    if (bias) expect_float(bias, bias_dtype_), call.bias = place_pairs(bias, bias_dtype_, places);
    if (allow) allow.expect("?Bb", 1, "a bool or uint8 array"), call.allow = place_pairs(allow, 0, places);
    std::vector<double> logits;
    if (sink) {
      if (!read_sink(sink, table && !PyObject_CheckBuffer(sink_.ptr()), logits)) return kLongWay;
      call.sink = logits.data();
    }

    check(output, call.H, call.L, call.E);
    call.output_length_first = output.length_first(), call.output = output.data();
    const int64_t rows = call.N * call.H * call.L, bytes = compute_ == QKV_F64 ? 8 : 4;
    if (lse) call.lse = numbers(lse, rows);
    if (states) {
      char *const at = numbers(states, 2 * rows);
      call.max = at, call.sum = at + rows * bytes;
    }
    uint8_t few[256];
    std::vector<uint8_t> more;
    if (rows > int64_t(sizeof few)) more.resize(size_t(rows));
    call.status = more.empty() ? few : more.data();
    const double work = double(call.N) * double(call.H) * double(call.L) * double(call.S) * double(call.D + call.E);
    carry_out(call, [&] { return attend_(&call); }, work < kBrief);
    return (call.status_any & ~QKV_ALLOWED) | (call.status_all & QKV_ALLOWED ? 0 : 1);
  }

 private:
  // Where the batches of a run's operands begin; most runs have one batch and need no list.
  struct Places {
    std::vector<int64_t> many[5];
    int used = 0;
    int64_t none = 0;
    std::vector<int64_t> &next() { return many[used++]; }
  };

  static Buffer view(nb::handle object, const char *name, const dlpack::Exchange *table) {
    if (!table || object.is_none() || PyObject_CheckBuffer(object.ptr())) return Buffer(object, name);
    return Buffer(object, name, *table);
  }

  char *numbers(const Buffer &b, int64_t count) const {
    expect_float(b, compute_), b.expect_contiguous();
    int64_t size = 1;
    for (int axis = 0; axis < b.axes(); ++axis) size *= b.size(axis);
    if (size != count) refuse(b.name(), "as many numbers as there are rows");
    return b.data();
  }

  void check(const Buffer &b, int64_t heads, int64_t rows, int64_t columns) const {
    if (!b || b.axes() != axes_) refuse(b.name(), "an array with the axes the recipe was made for");
    expect_float(b, dtype_);
    bool fits = b.size(-2) == rows && b.size(-1) == columns && (axes_ == 2 || b.size(-3) == heads);
    for (int axis = 0; axis < axes_ - 3; ++axis) fits = fits && b.size(axis) == batch_[size_t(axis)];
    if (!fits) refuse(b.name(), "of the shape the recipe was made for");
  }

  // An operand of the caller's axes: (B…, heads, rows, columns), or (rows, columns).
  qkv_operand place(const Buffer &b, int64_t heads, int64_t rows, int64_t columns, Places &places) const {
    check(b, heads, rows, columns);
    qkv_operand o = {};
    o.base = b.data(), o.dtype = dtype_, o.batch_offset = &places.none;
    if (call_.N > 1) {
      std::vector<int64_t> &many = places.next();
      batch_offsets(b, axes_ - 3, many);
      o.batch_offset = many.data();
    }
    o.stride[0] = axes_ == 2 ? 0 : b.stride(-3), o.stride[1] = b.stride(-2), o.stride[2] = b.stride(-1);
    return o;
  }

  // Keys or values of a cache, (N, G, at least so many rows, columns).
  qkv_operand place_held(const Buffer &b, int64_t rows, int64_t columns, Places &places) const {
    expect_float(b, dtype_);
    if (b.axes() != 4 || b.size(0) != call_.N || b.size(1) != call_.G || b.size(2) < rows || b.size(3) != columns)
      refuse(b.name(), "of the shape the recipe was made for");
    qkv_operand o = {};
    o.base = b.data(), o.dtype = dtype_;
    std::vector<int64_t> &many = places.next();
    batch_offsets(b, 1, many);
    o.batch_offset = many.data();
    for (int k = 0; k < 3; ++k) o.stride[k] = b.stride(k + 1);
    return o;
  }

  // Numbers of pairs, which broadcast to (B…, H, L, S) from the right.
  qkv_operand place_pairs(const Buffer &b, int32_t dtype, Places &places) const {
    const int64_t last[3] = {call_.H, call_.L, call_.S};
    const int leading = int(batch_.size());
    if (b.axes() > leading + 3) refuse(b.name(), "of the shape the recipe was made for");
    qkv_operand o = {};
    o.base = b.data(), o.dtype = dtype;
    std::vector<int64_t> &offsets = places.next();
    offsets.assign(1, 0);
    for (int axis = 0; axis < leading + 3; ++axis) {
      const int own = axis - (leading + 3) + b.axes();  // the array's axis, if it has it
      const int64_t full = axis < leading ? batch_[size_t(axis)] : last[axis - leading], size = own < 0 ? 1 : b.size(own);
      if (size != full && size != 1) refuse(b.name(), "of the shape the recipe was made for");
      const int64_t stride = size == 1 ? 0 : b.stride(own);
      if (axis >= leading) {
        o.stride[axis - leading] = stride;
        continue;
      }
      std::vector<int64_t> wider;
      wider.reserve(offsets.size() * size_t(full));
      for (int64_t base : offsets)
        for (int64_t i = 0; i < full; ++i) wider.push_back(base + i * stride);
      offsets.swap(wider);
    }
    o.batch_offset = offsets.data();
    return o;
  }

  // One finite logit a head; false where it is for the long way to say what is wrong.
  bool read_sink(const Buffer &b, bool tensor, std::vector<double> &logits) const {
    if (b.axes() != 1 || b.size(0) != call_.H) return false;
    const double largest = compute_ == QKV_F64 ? 1.7976931348623157e308 : double(3.40282346638528859812e38f);
    logits.resize(size_t(call_.H));
    const char *format = b.format();
    for (int64_t h = 0; h < call_.H; ++h) {
      const char *at = b.data() + h * b.stride(0);
      double x;
      if (*format == 'd') {
        std::memcpy(&x, at, 8);
      } else if (*format == 'f') {
        float narrow;
        std::memcpy(&narrow, at, 4);
        x = double(narrow);
      } else if (*format == 'H' && tensor) {  // bfloat16
        uint16_t bits;
        std::memcpy(&bits, at, 2);
        const uint32_t wide = uint32_t(bits) << 16;
        float narrow;
        std::memcpy(&narrow, &wide, 4);
        x = double(narrow);
      } else {
        return false;
      }
      if (!(std::fabs(x) <= largest)) return false;
      logits[size_t(h)] = x;
    }
    return true;
  }

  // Ranges and offsets of rows that stand among the keys of a cache; false where a row may read what it has forgotten.
  bool read_held(const Held &held, qkv_call &call, std::vector<int32_t> &lo, std::vector<int32_t> &hi,
                 std::vector<int32_t> &origin, std::vector<int64_t> &offset) const {
    for (const Buffer *b : {&held.lengths, &held.stand, &held.firsts}) {
      if (!*b && b == &held.firsts) continue;
      if (!*b) refuse(b->name(), "an int64 array");
      b->expect("lq", 8, "an int64 array");
      b->expect_axes(1), b->expect_shape({call.N}), b->expect_contiguous();
    }
    if (held.keys < 1 || held.keys > kLargest || held.start < 0 || held.start > kLargest || held.threads < 1)
      refuse("held", "numbers of keys and threads");
    call.S = held.keys, call.threads = held.threads, call.spread = held.spread;
    const size_t rows = size_t(call.N * call.L);
    lo.resize(rows), hi.resize(rows), offset.resize(size_t(call.N));
    const auto *lengths = reinterpret_cast<const int64_t *>(held.lengths.data()),
               *stand = reinterpret_cast<const int64_t *>(held.stand.data()),
               *firsts = reinterpret_cast<const int64_t *>(held.firsts.data());
    const auto within = [&](int64_t key) {
      key -= held.start;
      return int32_t(key < 0 ? 0 : key > held.keys ? held.keys : key);
    };
    for (int64_t n = 0; n < call.N; ++n) {
      const int64_t first = stand[n] - held.back, length = lengths[n];
      if (length < 0 || length > kLargest || first > kLargest || first < -kLargest) return false;
      offset[size_t(n)] = first - held.start;
      for (int64_t i = 0; i < call.L; ++i) {
        const int64_t position = first + i;
        int64_t from = left_ < 0 ? 0 : position - left_, to = right_ < 0 ? length : position + right_ + 1;
        if (from < 0) from = 0;
        if (to > length) to = length;
        if (firsts && from < to && from < firsts[n]) return false;
        lo[size_t(n * call.L + i)] = within(from), hi[size_t(n * call.L + i)] = within(to);
      }
    }
    if (held.start) origin.assign(size_t(call.L), int32_t(-held.start)), call.origin = origin.data(), call.origin_batch = 0;
    call.lo = lo.data(), call.hi = hi.data(), call.offset = offset.data();
    return true;
  }

  qkv_attend_fn attend_;
  qkv_call call_ = {};
  int axes_;
  int32_t dtype_, compute_, bias_dtype_;
  bool has_bias_, has_allow_, has_sink_, grows_;
  int64_t left_ = -1, right_ = -1;
  std::vector<int64_t> batch_, offset_own_;
  std::vector<int32_t> lo_own_, hi_own_, origin_own_;
  std::vector<double> slopes_own_;
};

}  // namespace

void bind_recipe(nb::module_ &m) {
  nb::class_<Recipe>(m, "Recipe")
      .def(nb::init<int, nb::tuple, int, nb::object>(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none())
      .def("run", &Recipe::run, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(),
           nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none());
}
