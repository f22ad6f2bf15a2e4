// What a call's sizes, types and options decide, kept, so that the same call with other numbers costs a few checks.
#pragma once
#include <nanobind/nanobind.h>

void bind_recipe(nanobind::module_ &m);
