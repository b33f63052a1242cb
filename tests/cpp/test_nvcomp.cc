// The codecs "nvcomp.*" without a GPU: the kernels around nvCOMP in the emulator, with an nvCOMP for tests; sizes and
// specs; and the functions of the real library, if it is found.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "codec/nvcomp/library.h"
#include "cuda/kernels/nvcomp/nvcomp_plan.cuh"
#include "cuda_grid.h"
#include "fake_nvcomp.h"

namespace jaxccomp {
namespace {

using nvcomp::Format;
using nvcomp::Spec;
using testing::FakeNvcomp;
using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

constexpr std::byte kGuard{0x5a};
constexpr int64_t kGuardBytes = 64;
constexpr Spec kSmall = {.format = Format::kAns, .chunk_bytes = 16 << 10};

struct HostMachine : testing::LaunchHere {
  Status Copy(void* to, const void* from, int64_t bytes) const {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return Status::Ok();
  }
  CUstream_st* stream = nullptr;
};

// Memory `offset` bytes after an aligned address, with guards around it.
class Guarded {
 public:
  explicit Guarded(int64_t bytes, int64_t offset = 0)
      : bytes_(bytes), all_(static_cast<size_t>(bytes + 2 * kGuardBytes + 64), kGuard) {
    const auto base = reinterpret_cast<uintptr_t>(all_.data()) + kGuardBytes;
    at_ = all_.data() + kGuardBytes + ((base + 15) / 16 * 16 - base) + offset;
  }
  std::byte* data() { return at_; }
  Bytes Take(int64_t bytes) const { return {at_, at_ + bytes}; }
  void Put(const Bytes& from) { std::copy(from.begin(), from.end(), at_); }
  bool Intact() const {
    const auto guard = [](std::byte b) { return b == kGuard; };
    return std::all_of(all_.data(), const_cast<const std::byte*>(at_), guard) &&
           std::all_of(const_cast<const std::byte*>(at_) + bytes_, all_.data() + all_.size(), guard);
  }

 private:
  int64_t bytes_;
  Bytes all_;
  std::byte* at_;
};

int64_t CountOf(DType dtype, const Bytes& values) {
  return static_cast<int64_t>(values.size()) / SizeBytes(dtype);
}

Bytes Encoded(const Spec& spec, DType dtype, const Bytes& values, int64_t value_offset = 0,
              int64_t code_offset = 0) {
  const nvcomp::Functions functions = FakeNvcomp::Functions();
  const int64_t count = CountOf(dtype, values), most = nvcomp::MaxEncodedBytes(spec, dtype, count);
  Guarded from(static_cast<int64_t>(values.size()), value_offset), code(most, code_offset);
  from.Put(values);
  const auto needs = cuda::EncodeNeeds(functions, spec, dtype, count);
  if (!CHECK_OK(needs)) return {};
  Guarded workspace(
      cuda::NvcompMemoryBytes(cuda::CutOf(spec, dtype, count), *needs, from.data()));
  int64_t size = -1;
  HostMachine machine;
  CHECK_OK(cuda::EncodeWith(machine, functions,
                            {.spec = spec,
                             .dtype = dtype,
                             .values = from.data(),
                             .count = count,
                             .code = code.data(),
                             .size = &size,
                             .workspace = workspace.data()}));
  CHECK(from.Intact() && code.Intact() && workspace.Intact());
  if (!CHECK(size >= nvcomp::MinEncodedBytes(spec, dtype, count) && size <= most)) return {};
  return code.Take(size);
}

const cuda::NvcompSeed& TheSeed() {
  static Guarded memory(1 << 15);
  static const cuda::NvcompSeed seed = [] {
    const Bytes code =
        Encoded(cuda::SeedSpec(kSmall), DType::kUInt8, Bytes(cuda::kSeedValueBytes));
    memory.Put({code.begin() + cuda::kSeedAt, code.end()});
    return cuda::NvcompSeed{memory.data(), code.size() - cuda::kSeedAt};
  }();
  return seed;
}

// Whether `code` is valid; decodes it into `values`.
bool Decoded(const Spec& spec, DType dtype, const Bytes& code, int64_t count, Bytes* values,
             int64_t value_offset = 0, int64_t code_offset = 0) {
  const nvcomp::Functions functions = FakeNvcomp::Functions();
  const cuda::NvcompSeed& seed = TheSeed();
  const int64_t bytes = count * SizeBytes(dtype);
  Guarded from(static_cast<int64_t>(code.size()), code_offset), to(bytes, value_offset);
  from.Put(code);
  const auto needs = cuda::DecodeNeeds(functions, spec, dtype, count);
  if (!CHECK_OK(needs)) return false;
  Guarded workspace(cuda::NvcompMemoryBytes(cuda::CutOf(spec, dtype, count), *needs, to.data()));
  int32_t status = -1;
  HostMachine machine;
  CHECK_OK(cuda::DecodeWith(machine, functions, seed,
                            {.spec = spec,
                             .dtype = dtype,
                             .code = from.data(),
                             .code_bytes = static_cast<int64_t>(code.size()),
                             .values = to.data(),
                             .count = count,
                             .status = &status,
                             .workspace = workspace.data()}));
  CHECK(from.Intact() && to.Intact() && workspace.Intact());
  CHECK(status == 0 || status == 1);
  *values = to.Take(bytes);
  return status == 0;
}

Bytes Noise(int64_t bytes, uint64_t seed) {
  Random random(seed);
  Bytes values(static_cast<size_t>(bytes));
  for (std::byte& b : values) b = static_cast<std::byte>(random());
  return values;
}

Bytes RunsOfBytes(int64_t bytes) {
  Bytes values(static_cast<size_t>(bytes));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::byte>(i / 97);
  return values;
}

// Alternating pieces of `each` bytes: compressible ones and noise.
Bytes Mixed(int64_t bytes, int64_t each) {
  Bytes values = Noise(bytes, 5);
  for (int64_t i = 0; i < bytes; ++i) {
    if (i / each % 2 == 0) values[static_cast<size_t>(i)] = static_cast<std::byte>(i / 200);
  }
  return values;
}

uint32_t WordAt(const Bytes& code, size_t at) {
  uint32_t word = 0;
  for (size_t i = 0; i < 4; ++i) word |= static_cast<uint32_t>(code[at + i]) << (8 * i);
  return word;
}

// An independent implementation of docs/wire_format_nvcomp.md.
uint32_t ChecksumOf(const Bytes& code, int64_t chunks) {
  uint32_t sum = 0;
  auto at = static_cast<size_t>(8 + 4 * chunks);
  for (int64_t k = 0; k < chunks; ++k) {
    const uint32_t bytes = WordAt(code, static_cast<size_t>(8 + 4 * k)) & 0x7fffffff;
    for (uint32_t j = 0; 4 * j < bytes; ++j) {
      uint32_t h = 0;
      for (uint32_t i = 0; i < 4 && 4 * j + i < bytes; ++i) {
        h |= static_cast<uint32_t>(code[at + 4 * j + i]) << (8 * i);
      }
      h ^= static_cast<uint32_t>(k) * 0x85ebca6bu + j * 0x9e3779b1u;
      h = (h ^ h >> 16) * 0x85ebca6bu;
      h = (h ^ h >> 13) * 0xc2b2ae35u;
      sum += h ^ h >> 16;
    }
    at += bytes;
  }
  return sum;
}

void CheckRoundTrip(const Spec& spec, DType dtype, const Bytes& values, int64_t value_offset = 0,
                    int64_t code_offset = 0) {
  const Bytes code = Encoded(spec, dtype, values, value_offset, code_offset);
  Bytes back;
  CHECK(Decoded(spec, dtype, code, CountOf(dtype, values), &back, value_offset, code_offset));
  CHECK(back == values);
}

TEST(nvcomp_round_trips_are_exact) {
  const int64_t chunk = kSmall.chunk_bytes;
  for (int64_t bytes : {int64_t{16}, int64_t{48}, int64_t{4096}, chunk - 16, chunk, chunk + 16,
                        3 * chunk, 5 * chunk + 1008}) {
    CheckRoundTrip(kSmall, DType::kFloat32, RunsOfBytes(bytes));
    CheckRoundTrip(kSmall, DType::kBFloat16, Noise(bytes, 1));
    CheckRoundTrip(kSmall, DType::kComplex128, Mixed(bytes, chunk));
  }
  for (int64_t bytes : {1, 2, 3, 7, 15, 17, 255, 16385}) {
    CheckRoundTrip(kSmall, DType::kUInt8, RunsOfBytes(bytes));
    CheckRoundTrip(kSmall, DType::kUInt8, Noise(bytes, 2));
  }
  // Chunks of more than one piece, and more chunks than a CTA has threads.
  CheckRoundTrip({.chunk_bytes = 128 << 10}, DType::kFloat32, Mixed(300000, 70000));
  CheckRoundTrip(kSmall, DType::kUInt8, Mixed(260 * chunk + 5, 20000));
}

TEST(nvcomp_accepts_any_alignment) {
  const Bytes values = Mixed(2 * kSmall.chunk_bytes + 4 * 33, 9000);
  for (int64_t offset : {1, 2, 3, 4, 5, 8, 11, 15}) {
    CheckRoundTrip(kSmall, DType::kUInt8, values, 0, offset);
    CheckRoundTrip(kSmall, DType::kUInt8, values, offset, 0);
    CheckRoundTrip(kSmall, DType::kUInt8, values, offset, 16 - offset);
  }
}

TEST(nvcomp_encodes_no_values_as_no_bytes) {
  CHECK_EQ(nvcomp::MaxEncodedBytes(kSmall, DType::kFloat32, 0), 0);
  const Bytes code = Encoded(kSmall, DType::kFloat32, {});
  CHECK(code.empty());
  Bytes back;
  CHECK(Decoded(kSmall, DType::kFloat32, {}, 0, &back));
  CHECK(!Decoded(kSmall, DType::kFloat32, Bytes(3), 0, &back));
}

TEST(nvcomp_keeps_its_frame_layout) {
  const int64_t chunk = kSmall.chunk_bytes;
  Bytes values(static_cast<size_t>(chunk), std::byte{9});
  const Bytes noise = Noise(1001 * 2, 3);
  values.insert(values.end(), noise.begin(), noise.end());
  const Bytes code = Encoded(kSmall, DType::kFloat16, values);
  // Each run of up to 255 equal bytes takes two bytes.
  const uint32_t packed = 2 * ((16384 + 254) / 255);
  if (!CHECK_EQ(code.size(), size_t{8 + 2 * 4} + packed + noise.size())) return;
  CHECK_EQ(WordAt(code, 0), 0x060a014eu);   // 'N', ANS, half types, nvCOMP 6
  CHECK_EQ(WordAt(code, 4), ChecksumOf(code, 2));
  CHECK_EQ(WordAt(code, 8), packed);
  CHECK_EQ(WordAt(code, 12), 0x80000000u | 2002);
  CHECK(std::equal(noise.begin(), noise.end(), code.end() - 2002));
}

TEST(nvcomp_library_never_receives_altered_chunks) {
  const int64_t chunk = kSmall.chunk_bytes, count = 3 * chunk + 500;
  const Bytes code = Encoded(kSmall, DType::kUInt8, Mixed(count, chunk));
  Bytes back;
  Random random(11);
  for (int i = 0; i < 250; ++i) {
    Bytes mutated = code;
    // Half of the mutations hit the header and the sizes.
    const size_t at = random() % (i % 2 == 0 ? 24 : mutated.size());
    mutated[at] ^= static_cast<std::byte>(1 + random() % 255);
    CHECK(!Decoded(kSmall, DType::kUInt8, mutated, count, &back, 0, i % 3));
  }
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{23}, size_t{24}, size_t{25},
                       code.size() - 1}) {
    CHECK(!Decoded(kSmall, DType::kUInt8, {code.begin(), code.begin() + static_cast<long>(bytes)},
                   count, &back));
  }
  Bytes longer = code;
  longer.push_back(std::byte{0});
  CHECK(!Decoded(kSmall, DType::kUInt8, longer, count, &back));
  // The end of a chunk moves by one byte while the total stays the same.
  Bytes moved = code;
  moved[8] = static_cast<std::byte>(static_cast<int>(moved[8]) + 1);
  moved[16] = static_cast<std::byte>(static_cast<int>(moved[16]) - 1);
  CHECK(!Decoded(kSmall, DType::kUInt8, moved, count, &back));
  // Another count, dtype or format.
  CHECK(!Decoded(kSmall, DType::kUInt8, code, count - 1, &back));
  CHECK(!Decoded(kSmall, DType::kFloat16, code, count / 2, &back));
  Spec other = kSmall;
  other.format = Format::kZstd;
  CHECK(!Decoded(other, DType::kUInt8, code, count, &back));
}

TEST(nvcomp_stores_failed_chunks_and_refuses_failed_decoding) {
  const Bytes values = RunsOfBytes(2 * kSmall.chunk_bytes);
  const int64_t count = CountOf(DType::kFloat32, values);
  Bytes back;
  TheSeed();
  FakeNvcomp::fails_to_encode = true;
  const Bytes stored = Encoded(kSmall, DType::kFloat32, values);
  FakeNvcomp::fails_to_encode = false;
  CHECK_EQ(static_cast<int64_t>(stored.size()),
           nvcomp::MaxEncodedBytes(kSmall, DType::kFloat32, count));
  const Bytes code = Encoded(kSmall, DType::kFloat32, values);
  CHECK(code.size() < values.size() / 10);
  for (bool* what : {&FakeNvcomp::fails_to_decode, &FakeNvcomp::decodes_too_little}) {
    *what = true;
    CHECK(!Decoded(kSmall, DType::kFloat32, code, count, &back));
    // Stored chunks still decode: only the seed passes through the library.
    CHECK(Decoded(kSmall, DType::kFloat32, stored, count, &back));
    CHECK(back == values);
    *what = false;
  }
  const int64_t before = FakeNvcomp::decoded;
  CHECK(Decoded(kSmall, DType::kFloat32, code, count, &back));
  CHECK_EQ(FakeNvcomp::decoded - before, 2);
}

TEST(nvcomp_computes_sizes_without_library_and_gpu) {
  const Spec spec = *nvcomp::ReadSpec("nvcomp.lz4:chunk=131072,shuffle=none");
  CHECK(spec.format == Format::kLz4);
  CHECK_EQ(spec.chunk_bytes, 131072);
  CHECK(!spec.bit_shuffle);
  CHECK(nvcomp::ReadSpec("nvcomp.lz4")->bit_shuffle);
  CHECK(!nvcomp::ReadSpec("lossless").has_value());
  CHECK(!nvcomp::ReadSpec("nvcomp.ans|lossless").has_value());
  CHECK_EQ(nvcomp::MaxEncodedBytes(spec, DType::kFloat32, 32769), 8 + 2 * 4 + 4 * 32769);
  CHECK_EQ(nvcomp::MaxEncodedBytes(spec, DType::kFloat32, -1), -1);
  CHECK_EQ(nvcomp::MaxEncodedBytes(spec, DType::kFloat32, int64_t{1} << 61), -1);
  for (const nvcomp::FormatRow& row : nvcomp::Formats()) {
    CHECK(&nvcomp::RowOf(row.format) == &row);
    const auto read = nvcomp::ReadSpec(row.name);
    CHECK(read && read->format == row.format && read->chunk_bytes == 1 << 16);
  }
}

// The library's host functions need no GPU, except for zstd.
TEST(nvcomp_library_matches_the_table_of_formats) {
  const std::string missing = nvcomp::Library::Missing();
  if (!missing.empty()) {
    std::printf("nvCOMP left out: %s\n", missing.c_str());
    return;
  }
  CHECK_EQ(nvcomp::Library::Get().version() / 1000, 6u);
  for (const nvcomp::FormatRow& row : nvcomp::Formats()) {
    const nvcomp::Functions& functions = nvcomp::Library::Get().functions(row.format);
    CHECK(functions.encode != nullptr && functions.decode != nullptr);
    if (row.format == Format::kZstd) continue;
    for (int i = 0; i < kDTypeCount; ++i) {
      const auto dtype = static_cast<DType>(i);
      const Spec spec = *nvcomp::ReadSpec(row.name);
      const auto encode = cuda::EncodeNeeds(functions, spec, dtype, 1 << 18);
      if (CHECK_OK(encode)) CHECK(encode->slot_bytes >= spec.chunk_bytes);
      CHECK_OK(cuda::DecodeNeeds(functions, spec, dtype, 1 << 18));
    }
  }
}

}  // namespace
}  // namespace jaxccomp
