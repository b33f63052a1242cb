// Status and Result: how all parts of the engine report failure. The engine never throws and never aborts the process
// on bad input.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace jaxccomp {

enum class Code : uint8_t {
  kOk,
  kInvalidArgument,    // an argument that is wrong everywhere
  kFailedPrecondition, // ranks disagree, or the engine's state does not allow the call
  kDeadlineExceeded,   // a peer did not respond in time
  kUnavailable,        // a transport, a library or a peer is missing
  kAborted,            // another rank reported an error, so this one failed too
  kDataLoss,           // received bytes do not decode
  kUnimplemented,      // not offered for this dtype, operation or platform
  kInternal,           // a defect of jaxccomp
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message)
      : code_(code), message_(std::move(message)) {}

  static Status Ok() { return {}; }
  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}           // NOLINT(runtime/explicit)
  Result(Status status) : status_(std::move(status)) {}   // NOLINT(runtime/explicit)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  const T& value() const { return *value_; }
  T* operator->() { return &*value_; }
  T& operator*() { return *value_; }
  const T* operator->() const { return &*value_; }
  const T& operator*() const { return *value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace jaxccomp
