// Converts statuses to Python exceptions.
#pragma once

#include <pybind11/pybind11.h>

#include <stdexcept>

#include "common/status.h"

namespace jaxccomp {

// Throws ValueError for an invalid argument, BufferError for bytes that do not decode, RuntimeError for other
// errors.
inline void Check(const Status& status) {
  switch (status.code()) {
    case Code::kOk: return;
    case Code::kInvalidArgument: throw pybind11::value_error(status.message());
    case Code::kDataLoss: throw pybind11::buffer_error(status.message());
    default: throw std::runtime_error(status.message());
  }
}

}  // namespace jaxccomp
