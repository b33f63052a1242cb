// The CUDA kernels of the codecs "topk", "dgc" and "randomk", run by the emulator of
// csrc/cuda/emulator/simt_emulator.h: the CPU codecs' bytes, their values and sums, and their verdict on
// bytes that are not valid.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "check.h"
#include "cuda/kernels/sparse/sparse_plan.cuh"
#include "cuda_grid.h"
#include "fixed_rate_cases.h"
#include "guarded.h"
#include "sparse_cases.h"

namespace jaxccomp {
namespace {

using namespace testing;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr RandomKey kKey = {0x123456789abcdef, 77, 3};

std::string What(const SparseCase& c, DType dtype, int64_t count, int64_t first) {
  return c.spec + " of " + std::to_string(count) + " " + std::string(Name(dtype)) + " from " +
         std::to_string(first);
}

Bytes EncodedByKernels(const SparseCase& c, DType dtype, const Bytes& values, int64_t count,
                       int64_t first, int64_t offset) {
  Guarded from(std::ssize(values), offset * SizeBytes(dtype));
  from.Fill(values);
  // Every alignment of the code.
  static int64_t turn = 0;
  const int64_t most = cuda::SparseMostBytes(c.codec, dtype, count);
  Guarded code(most, turn++ % 16);
  Guarded workspace(cuda::SparseEncodeMemory(nullptr, c.codec, dtype, count).pieces.bytes());
  int64_t size = cuda::SparseLeastBytes(c.codec, dtype, count);
  const bool sized = c.codec.format == cuda::SparseFormat::kDgc;
  CHECK_OK(cuda::DispatchSparseEncode({.codec = c.codec,
                                       .dtype = dtype,
                                       .values = from.data(),
                                       .count = count,
                                       .code = code.data(),
                                       .size = sized ? &size : nullptr,
                                       .key = kKey,
                                       .first = first,
                                       .workspace = workspace.data()},
                                      LaunchHere{}));
  CHECK(code.Intact() && from.Intact() && workspace.Intact());
  Bytes encoded = code.Values();
  if (CHECK(size >= 0 && size <= most)) encoded.resize(static_cast<size_t>(size));
  return encoded;
}

// Returns whether it is valid.
template <bool kAdd>
bool DecodedByKernels(const SparseCase& c, DType dtype, const Bytes& code, int64_t count,
                      int64_t offset, Bytes* values) {
  static int64_t turn = 0;
  Guarded from(std::ssize(code), turn++ % 16);
  from.Fill(code);
  Guarded to(std::ssize(*values), offset * (kAdd ? 4 : SizeBytes(dtype)));
  to.Fill(*values);
  Guarded workspace(cuda::SparseDecodeMemory(nullptr, count).pieces.bytes());
  int32_t status = 0;
  CHECK_OK(cuda::DispatchSparseDecode<kAdd>({.codec = c.codec,
                                             .dtype = dtype,
                                             .code = from.data(),
                                             .code_bytes = std::ssize(code),
                                             .values = to.data(),
                                             .count = count,
                                             .status = &status,
                                             .workspace = workspace.data()},
                                            LaunchHere{}));
  CHECK(to.Intact() && from.Intact() && workspace.Intact());
  CHECK(status == 0 || status == 1);
  *values = to.Values();
  return status == 0;
}

bool SameSums(const SparseCase& c, DType dtype, const Bytes& code, int64_t count, int64_t offset,
              const Bytes& decoded) {
  Floats sums = CaseValues(2, count);
  for (int64_t i = 0; i < count; i += 3) sums[i] = -0.0f;
  const Bytes before = AsDType(DType::kFloat32, sums);
  Floats added(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    added[i] = __builtin_bit_cast(float, FloatBits(dtype, decoded.data(), i));
  }
  Workspace workspace;
  Bytes expected = before, actual = before;
  CHECK_OK(FindCodec(c.spec).DecodeMerge(dtype, code, ReduceOp::kSum, DType::kFloat32,
                                         expected.data(), count, CodingContext(workspace)));
  CHECK(DecodedByKernels<true>(c, dtype, code, count, offset, &actual));
  return FirstOtherSum(DType::kFloat32, before, AsDType(DType::kFloat32, added), expected, actual,
                       count) < 0;
}

bool CheckSame(const SparseCase& c, DType dtype, const Bytes& values, int64_t count,
               int64_t first = 11, int64_t offset = 0) {
  const std::string what = What(c, dtype, count, first);
  const Codec& codec = FindCodec(c.spec);
  Workspace workspace;
  CodingContext context(workspace);
  context.key = kKey;
  context.first = first;
  Bytes code(static_cast<size_t>(codec.MaxEncodedBytes(dtype, count)));
  CHECK_EQ(std::ssize(code), cuda::SparseMostBytes(c.codec, dtype, count));
  CHECK_EQ(codec.MinEncodedBytes(dtype, count), cuda::SparseLeastBytes(c.codec, dtype, count));
  const Result<int64_t> bytes = codec.Encode(dtype, values.data(), count, code, context);
  if (!CHECK_OK(bytes)) return false;
  code.resize(static_cast<size_t>(*bytes));
  if (EncodedByKernels(c, dtype, values, count, first, offset) != code) {
    return CHECK_EQ("other bytes", what);
  }
  Bytes expected(values.size()), decoded(values.size(), std::byte{0x77});
  CHECK_OK(codec.Decode(dtype, code, expected.data(), count, context));
  if (!CHECK(DecodedByKernels<false>(c, dtype, code, count, offset, &decoded))) return false;
  if (decoded != expected) return CHECK_EQ("other values", what);
  return SameSums(c, dtype, code, count, offset, expected) || CHECK_EQ("other sums", what);
}

// Each codec with every `step`-th kind of values, in turn.
void CheckAll(const std::vector<int64_t>& counts, const std::vector<const char*>& densities,
              int step = 1) {
  int turn = 0;
  for (const SparseCase& c : SparseCases(densities)) {
    for (DType dtype : kDTypes) {
      for (int64_t count : counts) {
        for (SparseKind kind : kSparseKinds) {
          if (turn++ % step != 0) continue;
          if (!CheckSame(c, dtype, SparseValues(kind, dtype, count), count)) {
            std::fprintf(stderr, "kind %d\n", static_cast<int>(kind));
            return;
          }
        }
      }
    }
  }
}

TEST(cuda_sparse_lengths) {
  CheckAll({0, 1, 2, 7, 255, 257, 4095, 4096, 4097}, {"1e-6", "0.01", "0.3", "1"}, 3);
}

TEST(cuda_sparse_sub_blocks) {
  CheckAll({65535, 65537, 3 * 65536 + 4099}, {"0.001", "0.01", "0.5"}, 7);
}

TEST(cuda_sparse_unaligned) {
  for (const SparseCase& c : SparseCases({"0.05"})) {
    for (DType dtype : kDTypes) {
      for (int64_t offset : {1, 3, 7}) {
        const Bytes values = SparseValues(SparseKind::kGaussian, dtype, 9001);
        CheckSame(c, dtype, values, 9001, -offset, offset);
      }
    }
  }
}

// What a sample does not see: the kernels that follow read the values in place of the list.
TEST(cuda_sparse_misled_samples) {
  constexpr int64_t kCount = 150000;
  for (const SparseCase& c : SparseCases({"0.002", "0.02"})) {
    for (DType dtype : kDTypes) {
      for (bool greater : {false, true}) {
        Floats values = Gaussian(kCount);
        std::vector<bool> seen(kCount);
        const int64_t part = kCount >> 12, rest = kCount & 4095;
        for (int64_t i = 0; i < 4096; ++i) {
          const uint32_t place = static_cast<uint32_t>(i + 1) * sparse::kSampleStep;
          const int64_t at = i * part + (i * rest >> 12) + (int64_t{place >> 16} * part >> 16);
          seen[static_cast<size_t>(at)] = true;
        }
        for (int64_t i = 0; i < kCount; ++i) {
          if (seen[static_cast<size_t>(i)] == greater) values[i] *= 1000;
        }
        CheckSame(c, dtype, AsDType(dtype, values), kCount);
      }
    }
  }
}

// As the CPU has it, whatever is changed of a code.
bool CheckVerdict(const SparseCase& c, DType dtype, const Bytes& code, int64_t count) {
  const Codec& codec = FindCodec(c.spec);
  const int64_t bytes = std::ssize(code);
  if (bytes < codec.MinEncodedBytes(dtype, count) || bytes > codec.MaxEncodedBytes(dtype, count)) {
    return true;   // who decodes is not asked
  }
  Workspace workspace;
  Bytes expected(static_cast<size_t>(count * SizeBytes(dtype))), decoded = expected;
  const Status status = codec.Decode(dtype, code, expected.data(), count, CodingContext(workspace));
  if (!CHECK_EQ(DecodedByKernels<false>(c, dtype, code, count, 0, &decoded), status.ok())) {
    return false;
  }
  if (status.ok()) {
    return CHECK(decoded == expected) && CHECK(SameSums(c, dtype, code, count, 0, expected));
  }
  Bytes sums(static_cast<size_t>(count) * 4);
  return CHECK(!DecodedByKernels<true>(c, dtype, code, count, 0, &sums));
}

// JAXCCOMP_MUTATIONS sets how many altered codes there are.
TEST(cuda_sparse_mutations) {
  const char* const text = std::getenv("JAXCCOMP_MUTATIONS");
  const int64_t mutations = text != nullptr ? std::atoll(text) : 800;
  struct Original {
    SparseCase c;
    DType dtype;
    int64_t count;
    Bytes code;
  };
  std::vector<Original> originals;
  for (const SparseCase& c : SparseCases({"0.001", "0.2"})) {
    for (DType dtype : kDTypes) {
      for (int64_t count : {40, 5000, 65536 + 300}) {
        for (SparseKind kind : {SparseKind::kGaussian, SparseKind::kNaN}) {
          const Bytes values = SparseValues(kind, dtype, count);
          originals.push_back({c, dtype, count, EncodedByKernels(c, dtype, values, count, 0, 0)});
        }
      }
    }
  }
  std::mt19937_64 random(14);
  int64_t refused = 0;
  for (int64_t m = 0; m < mutations; ++m) {
    const Original& original = originals[random() % originals.size()];
    Bytes code = original.code;
    for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
      const uint64_t reach = random() % 2 ? code.size() : std::min<uint64_t>(code.size(), 40);
      const uint64_t at = random() % reach;
      switch (random() % 5) {
        case 0: code[at] ^= static_cast<std::byte>(1 << random() % 8); break;
        case 1: code[at] = static_cast<std::byte>(random()); break;
        case 2: code[at] = random() % 2 ? std::byte{0} : std::byte{0xff}; break;
        case 3: std::swap(code[at], code[random() % code.size()]); break;
        default: code[at] = static_cast<std::byte>(static_cast<int>(code[at]) + 1); break;
      }
    }
    Workspace workspace;
    Bytes values(static_cast<size_t>(original.count * SizeBytes(original.dtype)));
    refused += !FindCodec(original.c.spec)
                    .Decode(original.dtype, code, values.data(), original.count,
                            CodingContext(workspace))
                    .ok();
    if (!CheckVerdict(original.c, original.dtype, code, original.count)) {
      std::fprintf(stderr, "%s\n",
                   What(original.c, original.dtype, original.count, m).c_str());
      return;
    }
  }
  CHECK(refused * 4 > mutations && refused < mutations);
}

// A number of values of its own that has the right length, and lengths that no number has.
TEST(cuda_sparse_dgc_numbers) {
  const SparseCase c = SparseCases({"0.25"})[1];
  const Bytes values = SparseValues(SparseKind::kGaussian, DType::kFloat32, 200);
  const Bytes code = EncodedByKernels(c, DType::kFloat32, values, 200, 0, 0);
  for (int64_t bytes = cuda::SparseLeastBytes(c.codec, DType::kFloat32, 200);
       bytes <= cuda::SparseMostBytes(c.codec, DType::kFloat32, 200); ++bytes) {
    Bytes other = code;
    other.resize(static_cast<size_t>(bytes));
    CheckVerdict(c, DType::kFloat32, other, 200);
  }
  uint64_t kept;
  std::memcpy(&kept, &code[1], sizeof(kept));
  CHECK(CheckVerdict(c, DType::kFloat32, code, 200) && kept > 1);
  // With the last, the length would be right if it did not overflow.
  for (uint64_t number : {uint64_t{0}, kept - 1, kept + 1, kept + (uint64_t{1} << 32), ~uint64_t{0},
                          kept + (uint64_t{1} << 63)}) {
    Bytes other = code;
    std::memcpy(&other[1], &number, sizeof(number));
    CheckVerdict(c, DType::kFloat32, other, 200);
  }
}

TEST(cuda_sparse_refuses) {
  const SparseCase c = SparseCases({"0.5"})[0];
  alignas(16) std::byte memory[64] = {};
  cuda::SparseEncodeCall call = {.codec = c.codec,
                                 .dtype = DType::kFloat64,
                                 .values = memory,
                                 .count = 1,
                                 .code = memory,
                                 .size = nullptr,
                                 .key = {},
                                 .first = 0,
                                 .workspace = memory};
  const auto code_of = [&] { return cuda::DispatchSparseEncode(call, LaunchHere{}).code(); };
  CHECK_EQ(code_of(), Code::kUnimplemented);
  call.dtype = DType::kFloat32;
  call.count = int64_t{1} << 31;
  CHECK_EQ(code_of(), Code::kInvalidArgument);
  call.count = -1;
  CHECK_EQ(code_of(), Code::kInvalidArgument);
  call.count = 1;
  call.values = memory + 2;
  CHECK_EQ(code_of(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace jaxccomp
