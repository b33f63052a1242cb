// An nvCOMP for tests on the host: a run-length code behind the interface of the real library. It decodes only its own
// output: other input fails the test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "check.h"
#include "codec/nvcomp/abi.h"

namespace jaxccomp::testing {

class FakeNvcomp {
 public:
  using Bytes = std::vector<std::byte>;

  static nvcomp::Functions Functions() {
    return {.encode_temporary = &EncodeTemporary,
            .encode_bound = &EncodeBound,
            .encode = &Encode,
            .decode_temporary = &DecodeTemporary,
            .decode = &Decode};
  }

  // Faults of all later chunks.
  static inline bool fails_to_encode = false, fails_to_decode = false, decodes_too_little = false;
  // The number of chunks passed to decode.
  static inline int64_t decoded = 0;

 private:
  static constexpr nvcomp::Outcome kFailed = 12;
  static constexpr size_t kTemporaryBytes = 40;
  static inline std::set<std::string> made_;
  static std::string Key(const void* code, size_t bytes) {
    return {static_cast<const char*>(code), bytes};
  }

  static size_t BoundOf(size_t chunk_bytes) { return 2 * chunk_bytes + 3; }

  static nvcomp::Outcome EncodeBound(size_t chunk, nvcomp::Options, size_t* bytes) {
    *bytes = BoundOf(chunk);
    return nvcomp::kSuccess;
  }
  static nvcomp::Outcome EncodeTemporary(size_t, size_t, nvcomp::Options, size_t* bytes, size_t,
                                         CUstream_st*) {
    *bytes = kTemporaryBytes;
    return nvcomp::kSuccess;
  }
  static nvcomp::Outcome DecodeTemporary(size_t, size_t, nvcomp::Options, size_t* bytes, size_t,
                                         CUstream_st*) {
    *bytes = kTemporaryBytes;
    return nvcomp::kSuccess;
  }

  static void CheckAligned(const void* at) { CHECK_EQ(reinterpret_cast<uintptr_t>(at) % 16, 0u); }

  static nvcomp::Outcome Encode(const void* const* values, const size_t* value_bytes, size_t most,
                                size_t chunks, void* temporary, size_t temporary_bytes,
                                void* const* codes, size_t* code_bytes, nvcomp::Options,
                                nvcomp::Outcome* outcomes, CUstream_st*) {
    CHECK_EQ(temporary_bytes, kTemporaryBytes);
    std::memset(temporary, 0x77, temporary_bytes);
    for (size_t i = 0; i < chunks; ++i) {
      CheckAligned(values[i]);
      CheckAligned(codes[i]);
      CHECK(value_bytes[i] > 0 && value_bytes[i] <= most);
      std::memset(codes[i], 0x33, BoundOf(most));   // touches the whole buffer
      if (fails_to_encode) {
        outcomes[i] = kFailed;
        continue;
      }
      const Bytes code =
          Runs({static_cast<const std::byte*>(values[i]), value_bytes[i]});
      std::memcpy(codes[i], code.data(), code.size());
      code_bytes[i] = code.size();
      outcomes[i] = nvcomp::kSuccess;
      made_.insert(Key(code.data(), code.size()));
    }
    return nvcomp::kSuccess;
  }

  // Encodes to pairs of a run length and a byte.
  static Bytes Runs(std::span<const std::byte> values) {
    Bytes code;
    for (size_t i = 0; i < values.size();) {
      size_t end = i + 1;
      while (end < values.size() && end - i < 255 && values[end] == values[i]) ++end;
      code.push_back(static_cast<std::byte>(end - i));
      code.push_back(values[i]);
      i = end;
    }
    return code;
  }

  static nvcomp::Outcome Decode(const void* const* codes, const size_t* code_bytes,
                                const size_t* room, size_t* value_bytes, size_t chunks,
                                void* temporary, size_t temporary_bytes, void* const* values,
                                nvcomp::Options, nvcomp::Outcome* outcomes, CUstream_st*) {
    CHECK_EQ(temporary_bytes, kTemporaryBytes);
    std::memset(temporary, 0x77, temporary_bytes);
    for (size_t i = 0; i < chunks; ++i) {
      CheckAligned(codes[i]);
      CheckAligned(values[i]);
      const auto* const code = static_cast<const std::byte*>(codes[i]);
      if (!CHECK(made_.contains(Key(code, code_bytes[i])))) continue;
      auto* const to = static_cast<std::byte*>(values[i]);
      size_t reached = 0;
      for (size_t at = 0; at < code_bytes[i]; at += 2) {
        const auto run = static_cast<size_t>(code[at]);
        if (!CHECK(reached + run <= room[i])) break;
        std::memset(to + reached, static_cast<int>(code[at + 1]), run);
        reached += run;
      }
      ++decoded;
      value_bytes[i] = reached - (decodes_too_little ? 1 : 0);
      outcomes[i] = fails_to_decode ? kFailed : nvcomp::kSuccess;
    }
    return nvcomp::kSuccess;
  }
};

}  // namespace jaxccomp::testing
