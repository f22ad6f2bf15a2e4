// A recipe is a call without its arrays: sizes, ranges and plan are read once and owned. Running it checks again all
// that would crash the process, so a wrong array is refused and never read past its end.
#include "recipe.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "buffer.h"
#include "dispatch.h"

namespace {

// Below so many multiplications other threads of Python would not be served sooner if the lock were let go.
constexpr double kBrief = 1 << 16;

template <class U> std::vector<U> owned(const Buffer &b, int64_t count) {
  const U *from = reinterpret_cast<const U *>(b.data());
  return b ? std::vector<U>(from, from + count) : std::vector<U>();
}

class Recipe {
 public:
  // Shapes are those of query, key and value, whose numbers are not looked at; `axes` is how many axes the arrays of
  // a run have, 2 or as many as these.
  Recipe(int level, nb::handle query_, nb::handle key_, nb::handle value_, int axes, int dtype, double scale,
         double softcap, nb::handle slopes_, nb::handle sink_, nb::handle offset_, nb::handle lo_, nb::handle hi_,
         nb::handle origin_, int64_t tile_rows, int64_t block, int64_t split, bool spread, int64_t threads)
      : axes_(axes), dtype_(dtype) {
    const Buffer query(query_, "query"), key(key_, "key"), value(value_, "value"), slopes(slopes_, "slopes"),
        sink(sink_, "sink"), offset(offset_, "offset"), lo(lo_, "lo"), hi(hi_, "hi"), origin(origin_, "origin");
    const qkv_level *found;
    if (level < 0 || level >= qkv_levels(&found)) refuse("level", "an index into levels()");
    attend_ = found[level].attend;
    for (const Buffer *b : {&query, &key, &value}) {
      if (!*b || b->axes() < 3) refuse(b->name(), "an array with at least three axes");
      expect_float(*b, dtype);
    }
    if (axes != query.axes() && !(axes == 2 && query.axes() == 3)) refuse("axes", "2 or those of the query");
    call_.N = 1;
    for (int axis = 0; axis < query.axes() - 3; ++axis) call_.N *= query.size(axis), batch_.push_back(query.size(axis));
    call_.H = query.size(-3), call_.L = query.size(-2), call_.D = query.size(-1);
    call_.G = key.size(-3), call_.S = key.size(-2), call_.E = value.size(-1);
    if (call_.H < 1 || call_.G < 1 || call_.D < 1 || call_.E < 1) refuse("each of H, G, D and E", "at least 1");
    if (call_.H % call_.G) refuse("H", "a multiple of G");
    if (axes == 2 && (call_.H != 1 || call_.G != 1)) refuse("H and G", "1 for two axes");
    for (int64_t size : {call_.N, call_.H, call_.L, call_.S, call_.D, call_.E})
      if (size > kLargest) refuse("each axis", "shorter than 2**31");

    if (!std::isfinite(scale)) refuse("scale", "finite");
    if (!(softcap >= 0 && std::isfinite(softcap))) refuse("softcap", "finite and not negative");
    call_.scale = scale, call_.softcap = softcap;
    for (const Buffer *b : {&slopes, &sink}) {
      if (!*b) continue;
      b->expect("d", 8, "a float64 array");
      b->expect_axes(1), b->expect_shape({call_.H}), b->expect_contiguous();
    }
    slopes_own_ = owned<double>(slopes, call_.H), sink_own_ = owned<double>(sink, call_.H);
    if (!offset) refuse("offset", "an int64 array");
    offset.expect("lq", 8, "an int64 array");
    offset.expect_axes(1), offset.expect_shape({call_.N}), offset.expect_contiguous();
    offset_own_ = owned<int64_t>(offset, call_.N);
    for (int64_t x : offset_own_)
      if (x > INT64_MAX / 4 || x < INT64_MIN / 4) refuse("offset", "within 2**61 of zero");
    if (!lo || !hi || lo.axes() != 3 || hi.axes() != 3) refuse("lo and hi", "int32 arrays (1 or N, L, K)");
    call_.K = lo.size(2);
    for (const Buffer *b : {&lo, &hi}) {
      b->expect("il", 4, "an int32 array");
      b->expect_shape({lo.size(0), call_.L, call_.K}), b->expect_contiguous();
    }
    if (lo.size(0) != 1 && lo.size(0) != call_.N) refuse("lo and hi", "int32 arrays (1 or N, L, K)");
    call_.range_batch = lo.size(0) == 1 ? 0 : call_.L * call_.K;
    lo_own_ = owned<int32_t>(lo, lo.size(0) * call_.L * call_.K), hi_own_ = owned<int32_t>(hi, lo.size(0) * call_.L * call_.K);
    if (origin) {
      origin.expect("il", 4, "an int32 array");
      origin.expect_axes(2), origin.expect_shape({call_.L}), origin.expect_contiguous();
      if (origin.size(0) != 1 && origin.size(0) != call_.N) refuse("origin", "an int32 array (1 or N, L)");
      origin_own_ = owned<int32_t>(origin, origin.size(0) * call_.L);
      call_.origin_batch = origin.size(0) == 1 ? 0 : call_.L;
    }
    if (tile_rows < 1 || block < 1 || split < 1 || threads < 1)
      refuse("each of tile_rows, block, split and threads", "at least 1");
    if (split % block) refuse("split", "a multiple of block");
    if (block > kLargest || split > kLargest) refuse("block and split", "less than 2**31");
    call_.tile_rows = tile_rows, call_.block = block, call_.split = split, call_.spread = spread, call_.threads = threads;

    call_.slopes = slopes ? slopes_own_.data() : nullptr, call_.sink = sink ? sink_own_.data() : nullptr;
    call_.offset = offset_own_.data(), call_.lo = lo_own_.data(), call_.hi = hi_own_.data();
    call_.origin = origin ? origin_own_.data() : nullptr;
    brief_ = double(call_.N) * double(call_.H) * double(call_.L) * double(call_.S) * double(call_.D + call_.E) < kBrief;
  }
  Recipe(const Recipe &) = delete;  // call_ points into it

  // Attention into `output`, with the axes of the query, heads or length first in memory. Answers 0, or what some rows met: 1 no allowed key,
  // 2, 4 and 8 as in qkv_status; or -1 without having done anything, if QKV_ENGINE asks for another engine.
  int run(nb::handle query, nb::handle key, nb::handle value, nb::handle output, nb::handle lse) const {
    if (other_engine()) return -1;
    return run_on(Buffer(query, "query"), Buffer(key, "key"), Buffer(value, "value"), output, lse);
  }

  // The same on tensors that a library's exchange table gives access to; -1 also where it does not.
  int run_tensors(nb::handle query, nb::handle key, nb::handle value, nb::handle output, nb::handle capsule) const {
    const dlpack::Exchange *table = dlpack::exchange(capsule.ptr());
    if (!table || other_engine()) return -1;
    const Buffer q(query, "query", *table), k(key, "key", *table), v(value, "value", *table);
    if (!q || !k || !v) return -1;
    return run_on(q, k, v, output, nb::none());
  }

 private:
  static bool other_engine() {
    const char *engine = std::getenv("QKV_ENGINE");
    return engine && *engine && std::strcmp(engine, "native") != 0;
  }

  int run_on(const Buffer &query, const Buffer &key, const Buffer &value, nb::handle output_, nb::handle lse_) const {
    const Buffer output(output_, "output", true), lse(lse_, "lse", true);
    qkv_call call = call_;
    int64_t one[3] = {};
    std::vector<int64_t> many[3];
    call.query = place(query, call.H, call.L, call.D, one[0], many[0]);
    call.key = place(key, call.G, call.S, call.D, one[1], many[1]);
    call.value = place(value, call.G, call.S, call.E, one[2], many[2]);
    place(output, call.H, call.L, call.E, one[0], many[0], false);
    call.output_length_first = output.length_first();
    call.output = output.data();
    if (lse) {
      expect_float(lse, dtype_ == QKV_F64 ? QKV_F64 : QKV_F32);
      lse.expect_axes(int(batch_.size()) + 2), lse.expect_shape({call.H, call.L}), lse.expect_contiguous();
      for (int axis = 0; axis < int(batch_.size()); ++axis)
        if (lse.size(axis) != batch_[size_t(axis)]) refuse("lse", "of the query's batch shape");
      call.lse = lse.data();
    }
    uint8_t few[256];
    std::vector<uint8_t> more;
    const int64_t rows = call.N * call.H * call.L;
    if (rows > int64_t(sizeof few)) more.resize(size_t(rows));
    call.status = more.empty() ? few : more.data();

    Patience patience = {std::chrono::steady_clock::now() + std::chrono::milliseconds(50)};
    call.poll = check_signals, call.poll_context = &patience;
    int code;
    if (brief_) {
      code = attend_(&call);
    } else {
      nb::gil_scoped_release others;
      code = attend_(&call);
    }
    if (code == 1) {
      if (PyErr_Occurred()) throw nb::python_error();
      throw std::runtime_error("the process forked while this call was at work; call again in the child");
    }
    if (code == 2) throw std::bad_alloc();
    return (call.status_any & ~QKV_ALLOWED) | (call.status_all & QKV_ALLOWED ? 0 : 1);
  }

  // An operand of the caller's axes: (B…, heads, rows, columns), or (rows, columns).
  qkv_operand place(const Buffer &b, int64_t heads, int64_t rows, int64_t columns, int64_t &one,
                    std::vector<int64_t> &many, bool offsets = true) const {
    qkv_operand o = {};
    if (!b || b.axes() != axes_) refuse(b.name(), "an array with the axes the recipe was made for");
    expect_float(b, dtype_);
    bool fits = b.size(-2) == rows && b.size(-1) == columns && (axes_ == 2 || b.size(-3) == heads);
    for (int axis = 0; axis < axes_ - 3; ++axis) fits = fits && b.size(axis) == batch_[size_t(axis)];
    if (!fits) refuse(b.name(), "of the shape the recipe was made for");
    if (!offsets) return o;
    o.base = b.data(), o.dtype = dtype_, o.batch_offset = &one;
    if (call_.N > 1) {
      batch_offsets(b, axes_ - 3, many);
      o.batch_offset = many.data();
    }
    o.stride[0] = axes_ == 2 ? 0 : b.stride(-3), o.stride[1] = b.stride(-2), o.stride[2] = b.stride(-1);
    return o;
  }

  qkv_attend_fn attend_;
  qkv_call call_ = {};
  int axes_;
  int32_t dtype_;
  bool brief_;
  std::vector<int64_t> batch_, offset_own_;
  std::vector<int32_t> lo_own_, hi_own_, origin_own_;
  std::vector<double> slopes_own_, sink_own_;
};

}  // namespace

void bind_recipe(nb::module_ &m) {
  nb::class_<Recipe>(m, "Recipe")
      .def(nb::init<int, nb::handle, nb::handle, nb::handle, int, int, double, double, nb::handle, nb::handle,
                    nb::handle, nb::handle, nb::handle, nb::handle, int64_t, int64_t, int64_t, bool, int64_t>(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
           nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg())
      .def("run", &Recipe::run, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none())
      .def("run_tensors", &Recipe::run_tensors);
}
