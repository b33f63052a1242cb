// Measures codecs: jaxccomp_bench_spec [bytes] spec... prints for each the ratio and how many GB
// of values a second one thread encodes, decodes and merges, of gaussian values in memory.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "codec/registry.h"
#include "common/dynamic_library.h"
#include "common/half.h"

using namespace jaxccomp;

namespace {

// The best of many runs.
template <typename F>
double Seconds(F&& f) {
  using Clock = std::chrono::steady_clock;
  double best = 1e9, total = 0;
  for (int i = 0; i < 2000 && (i < 5 || total < 0.3); ++i) {
    const auto start = Clock::now();
    f();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

void Measure(const Codec& codec, DType dtype, int64_t count) {
  if (!codec.Supports(dtype)) return;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02f);
  const int64_t size = SizeBytes(dtype);
  std::vector<std::byte> values(count * size), out(count * size);
  for (int64_t i = 0; i < count; ++i) {
    const float value = normal(random);
    const uint16_t half = ToBFloat16(value).bits;
    if (dtype == DType::kFloat32) std::memcpy(&values[i * size], &value, size);
    if (dtype == DType::kBFloat16) std::memcpy(&values[i * size], &half, size);
  }
  std::vector<std::byte> code(codec.MaxEncodedBytes(dtype, count));
  Workspace workspace;
  const CodingContext context(workspace);
  int64_t bytes = 0;
  const double encode = Seconds(
      [&] { bytes = *codec.Encode(dtype, values.data(), count, code, context); });
  code.resize(bytes);
  bool ok = true;
  const double decode = Seconds(
      [&] { ok &= codec.Decode(dtype, code, out.data(), count, context).ok(); });
  const double merge = Seconds([&] {
    ok &= codec.DecodeMerge(dtype, code, ReduceOp::kSum, dtype, out.data(), count, context).ok();
  });
  const double gigabytes = static_cast<double>(count * size) / 1e9;
  std::printf("%-24s %-9s ratio %7.2f  encode %7.2f  decode %7.2f  merge %7.2f GB/s%s\n",
              codec.traits().spec.c_str(), std::string(Name(dtype)).c_str(),
              static_cast<double>(count * size) / static_cast<double>(bytes), gigabytes / encode,
              gigabytes / decode, gigabytes / merge, ok ? "" : "  FAILED");
}

}  // namespace

int main(int argc, char** argv) {
  if (const char* path = std::getenv("JAXCCOMP_LIBZFP")) AddLibraryPath("zfp", path);
  int64_t bytes = 1 << 20;
  for (int i = 1; i < argc; ++i) {
    if (const int64_t given = std::atoll(argv[i]); given > 0) {
      bytes = given;
      continue;
    }
    const auto codec = LookupCodec(argv[i]);
    if (!codec.ok()) {
      std::printf("%s\n", codec.status().message().c_str());
      continue;
    }
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      Measure(**codec, dtype, bytes / SizeBytes(dtype));
    }
  }
}
