// The backward pass for Python.
#pragma once
#include <nanobind/nanobind.h>

void bind_backward(nanobind::module_ &m);
