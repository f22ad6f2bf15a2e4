// Surveys of the weights for Python.
#pragma once
#include <nanobind/nanobind.h>

void bind_survey(nanobind::module_ &m);
