// Ratio and speed of the codec "lossless" with each kernel table, beside memcpy of the same
// working set in the same rounds. One JSON line per table and working set, medians of the rounds.
//
//   jaxccomp_bench_lossless                          Gaussian weights
//   jaxccomp_bench_lossless FILE DTYPE [REF_FILE]    raw bytes, or .npy (its header is skipped)
//   options: --chunk-kib N (256)  --rounds N (15)  --streaming-mib N (256)  --kernels NAME
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "codec/lossless/decode.h"
#include "codec/lossless/encode.h"
#include "codec/lossless/kernels.h"
#include "codec/lossless/workspace.h"
#include "common/dtype.h"

namespace jaxccomp::lossless {
namespace {

struct Options {
  std::string file, ref_file;
  DType dtype = DType::kBFloat16;
  int64_t chunk_bytes = 256 << 10;
  int64_t streaming_bytes = int64_t{256} << 20;
  int rounds = 15;
  std::string kernels;
};

std::vector<std::byte> Gaussian(DType dtype, int64_t bytes) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<std::byte> values(bytes);
  const int64_t size_bytes = SizeBytes(dtype);
  for (int64_t i = 0; i + size_bytes <= bytes; i += size_bytes) {
    const float value = normal(random);
    const double wide = value + value * 1e-9 * normal(random);
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const auto brain = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    if (dtype == DType::kBFloat16) std::memcpy(&values[i], &brain, 2);
    if (dtype == DType::kFloat32) std::memcpy(&values[i], &value, 4);
    if (dtype == DType::kFloat64) std::memcpy(&values[i], &wide, 8);
  }
  return values;
}

std::vector<std::byte> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  size_t skip = 0;
  if (text.size() > 10 && std::memcmp(text.data(), "\x93NUMPY", 6) == 0) {
    skip = 10 + static_cast<uint8_t>(text[8]) + (static_cast<uint8_t>(text[9]) << 8);
  }
  std::vector<std::byte> bytes(text.size() - skip);
  if (!bytes.empty()) std::memcpy(bytes.data(), text.data() + skip, bytes.size());
  return bytes;
}

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// A working set: chunks one after the other, each encoded to a place of its own.
class Bench {
 public:
  Bench(const Options& options, const std::vector<std::byte>& values,
        const std::vector<std::byte>& ref, int64_t total_bytes)
      : layout_(LayoutOf(options.dtype).layout),
        word_bytes_(Info(layout_).word_bytes),
        total_bytes_(total_bytes),
        chunk_bytes_(std::min(options.chunk_bytes, total_bytes)),
        slot_bytes_((EncodeBoundBytes(layout_, chunk_bytes_ / word_bytes_) + 4095) / 4096 * 4096),
        src_(total_bytes), ref_(ref.empty() ? 0 : total_bytes), dst_(total_bytes),
        code_((total_bytes + chunk_bytes_ - 1) / chunk_bytes_ * slot_bytes_),
        sizes_((total_bytes + chunk_bytes_ - 1) / chunk_bytes_) {
    for (int64_t i = 0; i < total_bytes; i += static_cast<int64_t>(values.size())) {
      const auto n = std::min<int64_t>(values.size(), total_bytes - i);
      std::memcpy(&src_[i], values.data(), n);
      if (!ref.empty()) std::memcpy(&ref_[i], ref.data(), n);
    }
  }

  void Copy() {
    for (int64_t i = 0; i < total_bytes_; i += chunk_bytes_) {
      std::memcpy(&dst_[i], &src_[i], Length(i));
      asm volatile("" ::"r"(dst_.data()) : "memory");
    }
  }

  void EncodeAll(const Kernels& kernels) {
    for (int64_t i = 0, c = 0; i < total_bytes_; i += chunk_bytes_, ++c) {
      sizes_[c] = Encode(kernels, layout_, &src_[i], Ref(i), Length(i) / word_bytes_,
                         &code_[c * slot_bytes_], *workspace_);
    }
  }

  bool DecodeAll(const Kernels& kernels) {
    for (int64_t i = 0, c = 0; i < total_bytes_; i += chunk_bytes_, ++c) {
      Decoder decoder(kernels, *workspace_);
      const std::span<const std::byte> code(&code_[c * slot_bytes_], sizes_[c]);
      if (!decoder.Open(layout_, code, Length(i) / word_bytes_, !ref_.empty()).ok()) return false;
      for (int64_t at = i; decoder.next_words() > 0;) {
        const int64_t bytes = decoder.next_words() * word_bytes_;
        if (!decoder.Next(&dst_[at], Ref(at)).ok()) return false;
        at += bytes;
      }
    }
    return true;
  }

  int64_t encoded_bytes() const {
    int64_t sum = 0;
    for (int64_t size : sizes_) sum += size;
    return sum;
  }
  bool exact() const { return src_ == dst_; }
  void Forget() { std::fill(dst_.begin(), dst_.end(), std::byte{0}); }

 private:
  int64_t Length(int64_t i) const { return std::min(chunk_bytes_, total_bytes_ - i); }
  const std::byte* Ref(int64_t i) const { return ref_.empty() ? nullptr : &ref_[i]; }

  const Layout layout_;
  const int64_t word_bytes_, total_bytes_, chunk_bytes_, slot_bytes_;
  std::vector<std::byte> src_, ref_, dst_, code_;
  std::vector<int64_t> sizes_;
  std::unique_ptr<Workspace> workspace_ = std::make_unique<Workspace>();
};

template <typename F>
double GBps(int64_t bytes, int repeats, F&& f) {
  const double begin = Seconds();
  for (int r = 0; r < repeats; ++r) f();
  return static_cast<double>(bytes) * repeats / (Seconds() - begin) / 1e9;
}

int Run(const Options& options) {
  const std::vector<std::byte> values =
      options.file.empty() ? Gaussian(options.dtype, 8 << 20) : ReadFile(options.file);
  const std::vector<std::byte> ref =
      options.ref_file.empty() ? std::vector<std::byte>() : ReadFile(options.ref_file);
  const int64_t size_bytes = SizeBytes(options.dtype);
  const int64_t usable = static_cast<int64_t>(values.size()) / size_bytes * size_bytes;
  if (usable == 0 || (!ref.empty() && ref.size() != values.size())) {
    std::fprintf(stderr, "no values in '%s', or a reference of another size\n",
                 options.file.c_str());
    return 1;
  }

  int64_t whole_bytes = 0;   // of all the file, for the ratio
  {
    Bench whole(options, values, ref, usable);
    whole.EncodeAll(BestKernels());
    whole_bytes = whole.encoded_bytes();
  }
  for (const bool cached : {true, false}) {
    const int64_t total = cached ? std::min(options.chunk_bytes, usable) : options.streaming_bytes;
    if (total == 0) continue;
    Bench bench(options, values, ref, total / size_bytes * size_bytes);
    const int repeats =
        static_cast<int>(std::max<int64_t>(1, (int64_t{32} << 20) / total));
    std::vector<const Kernels*> tables;
    for (const Kernels* kernels : RunnableKernels()) {
      if (options.kernels.empty() || options.kernels == kernels->name) tables.push_back(kernels);
    }
    std::vector<double> copy;
    std::vector<std::vector<double>> encode(tables.size()), decode(tables.size());
    for (int round = 0; round <= options.rounds; ++round) {
      const double copied = GBps(total, repeats, [&] { bench.Copy(); });
      if (round > 0) copy.push_back(copied);   // the first round warms up
      for (size_t t = 0; t < tables.size(); ++t) {
        const double encoded = GBps(total, repeats, [&] { bench.EncodeAll(*tables[t]); });
        if (round == 0) bench.Forget();
        bool ok = true;
        const double decoded = GBps(total, repeats, [&] { ok &= bench.DecodeAll(*tables[t]); });
        if (!ok || (round == 0 && !bench.exact())) {
          std::fprintf(stderr, "%s: did not decode to what was encoded\n", tables[t]->name);
          return 1;
        }
        if (round == 0) continue;
        encode[t].push_back(encoded);
        decode[t].push_back(decoded);
      }
    }
    const double memcpy_rate = Median(copy);
    for (size_t t = 0; t < tables.size(); ++t) {
      const double e = Median(encode[t]), d = Median(decode[t]);
      const std::string file = options.file.empty() ? "gaussian" : options.file;
      std::printf(
          "{\"codec\": \"lossless\", \"kernels\": \"%s\", \"dtype\": \"%s\", \"input\": \"%s\", "
          "\"delta\": %s, \"working_set\": \"%s\", \"working_set_bytes\": %lld, "
          "\"chunk_bytes\": %lld, \"ratio\": %.4f, \"encode_GBps\": %.2f, \"decode_GBps\": %.2f, "
          "\"memcpy_GBps\": %.2f, \"encode_of_memcpy\": %.3f, \"decode_of_memcpy\": %.3f}\n",
          tables[t]->name, std::string(Name(options.dtype)).c_str(),
          file.substr(file.rfind('/') + 1).c_str(), ref.empty() ? "false" : "true",
          cached ? "cached" : "streaming", static_cast<long long>(total),
          static_cast<long long>(options.chunk_bytes),
          static_cast<double>(usable) / static_cast<double>(whole_bytes), e, d, memcpy_rate,
          e / memcpy_rate, d / memcpy_rate);
    }
    std::fflush(stdout);
  }
  return 0;
}

bool Parse(int argc, char** argv, Options& options) {
  int positional = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg.substr(0, 2) == "--") {
      if (++i == argc) return false;
      if (arg == "--chunk-kib") options.chunk_bytes = std::atoll(argv[i]) << 10;
      else if (arg == "--streaming-mib") options.streaming_bytes = std::atoll(argv[i]) << 20;
      else if (arg == "--rounds") options.rounds = std::atoi(argv[i]);
      else if (arg == "--kernels") options.kernels = argv[i];
      else return false;
    } else if (positional == 0) {
      options.file = arg;
      ++positional;
    } else if (positional == 1) {
      bool found = false;
      for (int d = 0; d < kDTypeCount; ++d) {
        if (Name(static_cast<DType>(d)) != arg) continue;
        options.dtype = static_cast<DType>(d);
        found = true;
      }
      if (!found) return false;
      ++positional;
    } else {
      options.ref_file = arg;
    }
  }
  return options.chunk_bytes > 0 && options.rounds > 0;
}

}  // namespace
}  // namespace jaxccomp::lossless

int main(int argc, char** argv) {
  jaxccomp::lossless::Options options;
  if (!Parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: %s [FILE DTYPE [REF_FILE]] [--chunk-kib N] [--rounds N] "
                 "[--streaming-mib N] [--kernels NAME]\n", argv[0]);
    return 2;
  }
  return jaxccomp::lossless::Run(options);
}
