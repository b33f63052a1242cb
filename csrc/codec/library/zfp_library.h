// libzfp's functions and objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "codec/library/found.h"
#include "common/dtype.h"
#include "common/dynamic_library.h"

namespace jaxccomp::library {

inline constexpr size_t kZfpWordBits = 64;

class Zfp {
 public:
  Zfp();
  const std::string& missing() const { return missing_; }

  // The library's types uint and zfp_bool are unsigned and int here.
  void* (*open)(void*) = nullptr;
  void (*close)(void*) = nullptr;
  void (*set_bits)(void*, void*) = nullptr;
  void (*rewind)(void*) = nullptr;
  double (*set_rate)(void*, double, int, unsigned, int) = nullptr;
  unsigned (*set_precision)(void*, unsigned) = nullptr;
  double (*set_accuracy)(void*, double) = nullptr;
  size_t (*maximum_size)(const void*, const void*) = nullptr;
  void* (*make_field)(void*, int, size_t) = nullptr;
  void (*free_field)(void*) = nullptr;
  void (*set_pointer)(void*, void*) = nullptr;
  int (*set_type)(void*, int) = nullptr;
  void (*set_size)(void*, size_t) = nullptr;
  size_t (*compress)(void*, const void*) = nullptr;
  size_t (*decompress)(void*, void*) = nullptr;
  void* (*open_bits)(void*, size_t) = nullptr;
  void (*close_bits)(void*) = nullptr;

 private:
  DynamicLibrary library_;
  std::string missing_;
};

using ZfpLibrary = Found<Zfp>;

// The library's number of float32 or float64.
constexpr int ZfpType(DType dtype) { return dtype == DType::kFloat32 ? 3 : 4; }

// The library's objects, kept in the workspace because creating them allocates.
class ZfpObjects {
 public:
  ZfpObjects()
      : stream_(zfp_.open(nullptr)),
        field_(zfp_.make_field(nullptr, ZfpType(DType::kFloat32), 4)) {}
  ~ZfpObjects() {
    if (bits_ != nullptr) zfp_.close_bits(bits_);
    if (field_ != nullptr) zfp_.free_field(field_);
    if (stream_ != nullptr) zfp_.close(stream_);
  }
  ZfpObjects(const ZfpObjects&) = delete;
  ZfpObjects& operator=(const ZfpObjects&) = delete;

  bool there() const { return stream_ != nullptr && field_ != nullptr; }
  void* stream() const { return stream_; }

  // Sets the field to `count` values at `values`. Returns the maximum bytes of its stream; the library does
  // not read more, even of an invalid stream.
  int64_t Describe(DType dtype, const void* values, int64_t count) {
    zfp_.set_pointer(field_, const_cast<void*>(values));
    zfp_.set_type(field_, ZfpType(dtype));
    zfp_.set_size(field_, static_cast<size_t>(count));
    return static_cast<int64_t>(zfp_.maximum_size(stream_, field_));
  }

  // Sets the stream to the `bytes` bytes at `at`, and rewinds it.
  bool Rewind(std::byte* at, int64_t bytes) {
    if (at != at_ || bytes > bytes_) {
      if (bits_ != nullptr) zfp_.close_bits(bits_);
      bits_ = zfp_.open_bits(at, static_cast<size_t>(bytes));
      at_ = at;
      bytes_ = bytes;
    }
    if (bits_ == nullptr) return false;
    zfp_.set_bits(stream_, bits_);
    zfp_.rewind(stream_);
    return true;
  }

  int64_t Compress() { return static_cast<int64_t>(zfp_.compress(stream_, field_)); }
  int64_t Decompress() { return static_cast<int64_t>(zfp_.decompress(stream_, field_)); }

 private:
  const Zfp& zfp_ = ZfpLibrary::Get();
  void* const stream_;
  void* const field_;
  void* bits_ = nullptr;
  std::byte* at_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace jaxccomp::library
