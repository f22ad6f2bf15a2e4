// Surveys of the weights for Python: a call in, answers written to the arrays given.
#include "overlook.h"

#include "call.h"

namespace {

void survey(int level, nb::tuple parts, nb::handle base_, nb::handle whole_, nb::handle part_, nb::handle position_,
            nb::handle entropy_, nb::handle distance_, nb::handle received_, nb::handle spoiled_, double unit,
            nb::handle pooled_, nb::handle row_edge_, nb::handle key_edge_, int64_t first_row, int64_t first_key) {
  const Buffer base(base_, "base"), whole(whole_, "whole"), part(part_, "part"), position(position_, "position"),
      entropy(entropy_, "entropy", true), distance(distance_, "distance", true), received(received_, "received", true),
      spoiled(spoiled_, "spoiled", true), pooled(pooled_, "pooled", true), row_edge(row_edge_, "row_edge"),
      key_edge(key_edge_, "key_edge");
  Given given(level, parts);
  qkv_survey ask = {};
  ask.call = given.call;
  qkv_call &call = ask.call;

  const int32_t type = given.compute;
  if (!base || !whole || !part) refuse("base, whole and part", "arrays");
  ask.base = result_of(base, type, {call.N, call.H, call.L}), ask.whole = result_of(whole, type, {call.N, call.H, call.L});
  ask.part = result_of(part, type, {call.N, call.H, call.L});
  const int64_t places = position && position.axes() ? position.size(0) : 0;
  if (places != 1 && places != call.N) refuse("position", "an int64 array (1 or N, L)");
  ask.position = whole_numbers(position, {places, call.L});
  ask.position_batch = places == 1 ? 0 : call.L;
  ask.entropy = result_of(entropy, type, {call.N, call.H, call.L});
  ask.distance = result_of(distance, type, {call.N, call.H, call.L});
  ask.received = whole_numbers(received, {call.N, call.H, call.S});
  if (received) {
    if (!(unit > 0 && std::isfinite(unit))) refuse("unit", "finite and above 0");
    if (!spoiled) refuse("spoiled", "a uint8 array");
    spoiled.expect("B", 1, "a uint8 array");
    spoiled.expect_axes(3), spoiled.expect_shape({call.N, call.H, call.S}), spoiled.expect_contiguous();
    ask.spoiled = reinterpret_cast<uint8_t *>(spoiled.data()), ask.unit = unit;
  }
  if (pooled) {
    const auto edges = [&](const Buffer &b, int64_t first, int64_t size) {
      if (!b) refuse(b.name(), "an array");
      if (b.axes() != 1) refuse(b.name(), "an array of one axis");
      const int64_t *edge = whole_numbers(b, {b.size(0)});
      const int64_t runs = b.size(0) - 1;
      if (runs < 1 || runs > kLargest) refuse(b.name(), "the edges of at least one run");
      for (int64_t i = 0; i < runs; ++i)
        if (edge[i] >= edge[i + 1]) refuse(b.name(), "ascending");
      if (first < 0 || first > kLargest || edge[0] > first || edge[runs] < first + size) refuse(b.name(), "edges around everything");
      return edge;
    };
    ask.row_edge = edges(row_edge, first_row, call.L), ask.key_edge = edges(key_edge, first_key, call.S);
    ask.bands = row_edge.size(0) - 1, ask.cells = key_edge.size(0) - 1;
    ask.first_row = first_row, ask.first_key = first_key;
    ask.pooled = result_of(pooled, type, {call.N, call.H, ask.bands, ask.cells});
  }

  carry_out(call, [&] { return given.level->survey(&ask); });
}

}  // namespace

void bind_survey(nb::module_ &m) {
  m.def("survey", &survey, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
        nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg().none(),
        nb::arg().none(), nb::arg(), nb::arg());
}
