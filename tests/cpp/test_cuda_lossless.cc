// The CUDA kernels of the codec "lossless" in the emulator of csrc/cuda/emulator/simt_emulator.h: their bytes and
// values equal the CPU codec's, and they reject the same invalid bytes.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "check.h"
#include "codec/lossless/decode.h"
#include "codec/lossless/encode.h"
#include "cuda/kernels/lossless/lossless_plan.cuh"
#include "guarded.h"
#include "lossless_grid.h"
#include "lossless_values.h"

namespace jaxccomp {
namespace {

using lossless::Layout;
using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;
using testing::Guarded;
using testing::Kind;

int64_t WordBytes(Layout layout) { return lossless::Info(layout).word_bytes; }

lossless::Workspace& TheWorkspace() {
  static const auto workspace = std::make_unique<lossless::Workspace>();
  return *workspace;
}

Bytes EncodedByCpu(Layout layout, const Bytes& values, const Bytes* ref = nullptr) {
  const int64_t words = static_cast<int64_t>(values.size()) / WordBytes(layout);
  Bytes code(lossless::EncodeBoundBytes(layout, words));
  code.resize(lossless::Encode(lossless::BestKernels(), layout, values.data(),
                               ref == nullptr ? nullptr : ref->data(), words, code.data(),
                               TheWorkspace()));
  return code;
}

bool DecodedByCpu(Layout layout, std::span<const std::byte> code, int64_t words, Bytes& values) {
  values.assign(words * WordBytes(layout), std::byte{0});
  lossless::Decoder decoder(lossless::BestKernels(), TheWorkspace());
  Status status = decoder.Open(layout, code, words, /*delta=*/false);
  for (int64_t at = 0; status.ok() && decoder.next_words() > 0;) {
    const int64_t bytes = decoder.next_words() * WordBytes(layout);
    status = decoder.Next(values.data() + at, nullptr);
    at += bytes;
  }
  return status.ok();
}

Bytes EncodedByKernels(Layout layout, const Bytes& values, int64_t offset = 0,
                       int64_t max_blocks = 0) {
  const int64_t words = static_cast<int64_t>(values.size()) / WordBytes(layout);
  Guarded src(values.size(), offset);
  src.Fill(values);
  // Test all alignments of the output.
  static int64_t turn = 0;
  const int64_t bound = 8 + cuda::SegmentsOf(words) + words * WordBytes(layout);
  Guarded dst(bound, turn++ % 16);
  testing::EmulatedLauncher launcher;
  int64_t size = -1;
  cuda::WithLayout(layout, [&]<Layout known>() {
    Guarded workspace(cuda::Workspaces<known>::Encode(words));
    CHECK_EQ(cuda::EncodeWith<known>(launcher, {.layout = layout,
                                                .words = words,
                                                .src = src.data(),
                                                .dst = dst.data(),
                                                .size = &size,
                                                .workspace = workspace.data(),
                                                .max_blocks = max_blocks}),
             0);
    CHECK(max_blocks == 0 || launcher.last_blocks == std::min(max_blocks, cuda::SegmentsOf(words)));
    CHECK(workspace.Intact());
    return 0;
  });
  CHECK(dst.Intact() && src.Intact());
  if (!CHECK(size >= 0 && size <= bound)) return {};
  Bytes code = dst.Values();
  code.resize(size);
  return code;
}

bool DecodedByKernels(Layout layout, std::span<const std::byte> code, int64_t words,
                      Bytes& values, int64_t offset = 0) {
  static int64_t turn = 0;
  Guarded payload(code.size(), turn++ % 16);
  std::copy(code.begin(), code.end(), payload.data());
  Guarded dst(words * WordBytes(layout), offset);
  testing::EmulatedLauncher launcher;
  int32_t status = -1;
  cuda::WithLayout(layout, [&]<Layout known>() {
    Guarded workspace(cuda::Workspaces<known>::Decode(words));
    CHECK_EQ(cuda::DecodeWith<known>(launcher, {.layout = layout,
                                                .words = words,
                                                .payload = payload.data(),
                                                .payload_bytes = std::ssize(code),
                                                .dst = dst.data(),
                                                .status = &status,
                                                .workspace = workspace.data()}),
             0);
    CHECK(workspace.Intact());
    return 0;
  });
  CHECK(dst.Intact() && payload.Intact());
  CHECK(status == 0 || status == 1);
  values = dst.Values();
  return status == 0;
}

constexpr Kind kKinds[] = {Kind::kConstant, Kind::kNoise,  Kind::kGaussian,  Kind::kSpecial,
                           Kind::kSmall,    Kind::kSparse, Kind::kChanging, Kind::kZeroSegments};

Bytes Values(Layout layout, int64_t words, Kind kind, uint64_t seed) {
  return testing::LosslessValues(layout, words, kind, seed);
}

bool CheckSame(Layout layout, const Bytes& values, int64_t offset = 0) {
  const int64_t words = static_cast<int64_t>(values.size()) / WordBytes(layout);
  const Bytes expected = EncodedByCpu(layout, values);
  const Bytes code = EncodedByKernels(layout, values, offset);
  Bytes decoded;
  const bool same = CHECK(code == expected);
  const bool valid = CHECK(DecodedByKernels(layout, expected, words, decoded, offset));
  return same && valid && CHECK(decoded == values);
}

template <typename F>
void ForEachLayout(F&& f) {
  for (int l = 0; l < lossless::kLayoutCount; ++l) f(static_cast<Layout>(l));
}

TEST(cuda_lossless_kernels_return_the_cpu_bytes_for_all_lengths) {
  ForEachLayout([](Layout layout) {
    int kind = 0;
    for (int64_t words : {0, 1, 2, 7, 8, 9, 63, 64, 65, 70, 127, 128, 129, 700, 1023, 1024, 1025,
                          4097, 9001}) {
      for (int i = 0; i < 3; ++i) {
        if (!CheckSame(layout, Values(layout, words, kKinds[kind++ % std::size(kKinds)], words))) {
          std::fprintf(stderr, "layout %d, %d words\n", static_cast<int>(layout),
                       static_cast<int>(words));
          return;
        }
      }
    }
  });
}

TEST(cuda_lossless_kernels_return_the_cpu_bytes_at_segment_ends) {
  ForEachLayout([](Layout layout) {
    for (Kind kind : kKinds) {
      for (int64_t words : {lossless::kBlockWords, lossless::kBlockWords + 1,
                            lossless::kSegmentWords - 1, lossless::kSegmentWords,
                            4 * lossless::kSegmentWords + 12345}) {
        if (!CheckSame(layout, Values(layout, words, kind, words))) {
          std::fprintf(stderr, "layout %d, kind %d, %d words\n", static_cast<int>(layout),
                       static_cast<int>(kind), static_cast<int>(words));
          return;
        }
      }
    }
  });
}

TEST(cuda_lossless_bytes_do_not_depend_on_the_number_of_blocks) {
  ForEachLayout([](Layout layout) {
    const Bytes values = Values(layout, 3 * lossless::kSegmentWords + 700, kKinds[0], 5);
    const Bytes all = EncodedByKernels(layout, values);
    for (int64_t most : {1, 2}) CHECK(EncodedByKernels(layout, values, 0, most) == all);
  });
}

TEST(cuda_lossless_decoder_refuses_differences_to_a_base) {
  ForEachLayout([&](Layout layout) {
    const Bytes values = Values(layout, 1000, Kind::kGaussian, 3);
    Bytes decoded;
    CHECK(!DecodedByKernels(layout, EncodedByCpu(layout, values, &values), 1000, decoded));
  });
}

TEST(cuda_lossless_kernels_accept_unaligned_values) {
  ForEachLayout([](Layout layout) {
    const Bytes values = Values(layout, 20000, Kind::kGaussian, 9);
    for (int64_t offset : {1, 3}) CheckSame(layout, values, offset * WordBytes(layout));
  });
}

bool CheckVerdict(Layout layout, const Bytes& code, int64_t words) {
  Bytes expected, decoded;
  const bool valid = DecodedByCpu(layout, code, words, expected);
  return CHECK_EQ(DecodedByKernels(layout, code, words, decoded), valid) &&
         (!valid || CHECK(decoded == expected));
}

TEST(cuda_lossless_decoder_judges_prefixes_like_the_cpu) {
  for (Layout layout : {Layout::kBFloat16, Layout::kFloat64, Layout::kFloat16}) {
    for (Kind kind : {Kind::kGaussian, Kind::kSparse}) {
      const Bytes code = EncodedByCpu(layout, Values(layout, 200, kind, 12));
      for (size_t n = 0; n <= code.size(); ++n) {
        if (!CheckVerdict(layout, Bytes(code.begin(), code.begin() + n), 200)) return;
      }
      Bytes longer = code;
      longer.push_back(std::byte{0});
      CheckVerdict(layout, longer, 200);
      CheckVerdict(layout, code, 201);
    }
  }
}

// JAXCCOMP_MUTATIONS sets the number of altered frames.
TEST(cuda_lossless_decoder_judges_altered_frames_like_the_cpu) {
  const char* const text = std::getenv("JAXCCOMP_MUTATIONS");
  const int64_t mutations = text != nullptr ? std::atoll(text) : 500;
  struct Original {
    Layout layout;
    int64_t words;
    Bytes code;
  };
  std::vector<Original> originals;
  ForEachLayout([&](Layout layout) {
    for (Kind kind : kKinds) {
      if (kind == Kind::kNoise) continue;
      for (int64_t words : {int64_t{70}, int64_t{4500}, 3 * lossless::kSegmentWords + 5}) {
        originals.push_back({layout, words, EncodedByCpu(layout, Values(layout, words, kind, 13))});
      }
    }
  });
  Random random(14);
  for (int64_t m = 0; m < mutations; ++m) {
    const Original& original = originals[random() % originals.size()];
    Bytes code = original.code;
    for (uint64_t changes = 1 + random() % 3; changes > 0 && !code.empty(); --changes) {
      const uint64_t reach = random() % 4 == 0 ? code.size() : std::min<uint64_t>(code.size(), 80);
      const uint64_t at = random() % reach;
      switch (random() % 5) {
        case 0: code[at] ^= static_cast<std::byte>(1 << random() % 8); break;
        case 1: code[at] = static_cast<std::byte>(random()); break;
        case 2: code[at] = random() % 2 ? std::byte{0} : std::byte{0xff}; break;
        case 3: code.erase(code.begin() + at); break;
        default: code.insert(code.begin() + at, static_cast<std::byte>(random())); break;
      }
    }
    if (!CheckVerdict(original.layout, code, original.words)) return;
  }
}

// More segments than a region's chain holds, and regions that end anywhere.
TEST(cuda_lossless_kernels_return_the_cpu_bytes_for_many_segments) {
  for (Kind kind : {Kind::kGaussian, Kind::kConstant, Kind::kZeroSegments, Kind::kNoise}) {
    const int64_t words = 40 * lossless::kSegmentWords + 77;
    CheckSame(Layout::kBytes1, Values(Layout::kBytes1, words, kind, 21));
    CheckSame(Layout::kBFloat16, Values(Layout::kBFloat16, words, kind, 21));
  }
}

}  // namespace
}  // namespace jaxccomp
