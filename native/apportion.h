// Questions about single keys of a row for Python.
#pragma once
#include <nanobind/nanobind.h>

void bind_shares(nanobind::module_ &m);
