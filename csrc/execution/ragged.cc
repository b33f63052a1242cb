#include "execution/ragged.h"

#include <cstring>
#include <string>
#include <vector>

namespace jaxccomp {
namespace {

Result<std::vector<int64_t>> ReadIntegers(const OpSpec& spec, const Tensor& t, int ranks) {
  const bool wide = t.dtype == DType::kInt64 || t.dtype == DType::kUInt64;
  const bool narrow = t.dtype == DType::kInt32 || t.dtype == DType::kUInt32;
  if ((!wide && !narrow) || t.rows != ranks) {
    return Status(Code::kInvalidArgument,
                  spec.ToString() + ": offsets and sizes are int32 or int64 arrays with one entry "
                                    "per rank (" + std::to_string(ranks) + "), not " +
                      std::string(Name(t.dtype)) + " with " + std::to_string(t.rows));
  }
  std::vector<int64_t> values(ranks);
  for (int i = 0; i < ranks; ++i) {
    if (wide) {
      std::memcpy(&values[i], static_cast<const int64_t*>(t.data) + i, sizeof(int64_t));
    } else {
      int32_t value;
      std::memcpy(&value, static_cast<const int32_t*>(t.data) + i, sizeof(value));
      values[i] = value;
    }
  }
  return values;
}

}  // namespace

Status FillRagged(const OpSpec& spec, const Call& call, Problem* problem) {
  if (call.inputs.size() != 6 || call.outputs.size() != 1) {
    return {Code::kInvalidArgument, spec.ToString() + ": takes six operands and one result"};
  }
  std::vector<int64_t>* const targets[] = {&problem->send_offsets, &problem->send_sizes,
                                           &problem->recv_offsets, &problem->recv_sizes};
  for (int k = 0; k < 4; ++k) {
    const bool sends = k < 2;
    const Tensor& data = sends ? call.inputs[0] : call.outputs[0];
    const int64_t row_bytes = data.rows > 0 ? data.bytes / data.rows : 0;
    Result<std::vector<int64_t>> values = ReadIntegers(spec, call.inputs[2 + k], problem->ranks);
    if (!values.ok()) return values.status();
    for (int64_t& value : *values) {
      if (value < 0 || value > data.rows) {
        return {Code::kInvalidArgument,
                spec.ToString() + ": an offset or size of " + std::to_string(value) +
                    " rows lies outside the " + std::to_string(data.rows) + " rows of the " +
                    (sends ? "operand" : "output")};
      }
      value *= row_bytes;
    }
    *targets[k] = std::move(*values);
  }
  for (int sends = 0; sends < 2; ++sends) {
    const auto& offsets = sends ? problem->send_offsets : problem->recv_offsets;
    const auto& sizes = sends ? problem->send_sizes : problem->recv_sizes;
    const int64_t limit_bytes = sends ? call.inputs[0].bytes : call.outputs[0].bytes;
    for (int i = 0; i < problem->ranks; ++i) {
      if (offsets[i] + sizes[i] > limit_bytes) {
        return {Code::kInvalidArgument,
                spec.ToString() + ": the rows " + (sends ? "for" : "from") + " rank " +
                    std::to_string(i) + " run past the end of the " +
                    (sends ? "operand" : "output")};
      }
    }
  }
  return Status::Ok();
}

}  // namespace jaxccomp
