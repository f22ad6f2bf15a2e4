// Questions about single keys of a row for Python: a call in, answers written to the arrays given.
#include "apportion.h"

#include "call.h"

namespace {

void shares(int level, nb::tuple parts, int64_t run, nb::handle base_, nb::handle whole_, nb::handle output_,
            nb::handle weight_, nb::handle norm_, nb::handle share_, nb::handle relative_, nb::handle vectors_,
            nb::handle count_, nb::handle place_, nb::handle heavy_) {
  const Buffer base(base_, "base"), whole(whole_, "whole"), output(output_, "output"), weight(weight_, "weight", true),
      norm(norm_, "norm", true), share(share_, "share", true), relative(relative_, "relative", true),
      vectors(vectors_, "vectors", true), count(count_, "count", true), place(place_, "place", true),
      heavy(heavy_, "heavy", true);
  Given given(level, parts);
  qkv_shares ask = {};
  ask.call = given.call;
  qkv_call &call = ask.call;
  if (run < 1 || run > kLargest) refuse("run", "at least 1 and less than 2**31");
  ask.run = run;

  const int32_t type = given.compute;
  if (!base || !whole || !output) refuse("base, whole and output", "arrays");
  ask.base = result_of(base, type, {call.N, call.H, call.L}), ask.whole = result_of(whole, type, {call.N, call.H, call.L});
  ask.output = result_of(output, type, {call.N, call.H, call.L, call.E});
  void **const wanted[] = {&ask.weight, &ask.norm, &ask.share, &ask.relative};
  const Buffer *const from[] = {&weight, &norm, &share, &relative};
  for (int i = 0; i < 4; ++i) *wanted[i] = result_of(*from[i], type, {call.N, call.H, call.L, call.S});
  ask.vectors = result_of(vectors, type, {call.N, call.H, call.L, call.S, call.E});
  ask.count = whole_numbers(count, {call.N, call.H, call.L}), ask.place = whole_numbers(place, {call.N, call.H, call.L});
  ask.heavy = whole_numbers(heavy, {call.N, call.H, call.L});
  if (!count != !place) refuse("count and place", "both given or neither");
  if ((relative || vectors) && !heavy) refuse("heavy", "an int64 array");
  for (int64_t i = 0; heavy && i < call.N * call.H * call.L; ++i)
    if (ask.heavy[i] != -1) refuse("heavy", "-1 everywhere");
  carry_out(call, [&] { return given.level->shares(&ask); });
}

}  // namespace

void bind_shares(nb::module_ &m) {
  m.def("shares", &shares, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
        nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(),
        nb::arg().none());
}
