// Questions about the weights for Python.
#pragma once
#include <nanobind/nanobind.h>

void bind_answers(nanobind::module_ &m);
