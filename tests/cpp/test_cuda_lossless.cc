// The CUDA kernels of the codec "lossless", run by the emulator of csrc/cuda/emulator/simt_emulator.h:
// the CPU codec's bytes, its values back, and its verdict on bytes that are not valid.
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

Bytes EncodedByCpu(Layout layout, const Bytes& values, const Bytes* ref) {
  const int64_t words = static_cast<int64_t>(values.size()) / WordBytes(layout);
  Bytes code(lossless::EncodeBoundBytes(layout, words));
  code.resize(lossless::Encode(lossless::BestKernels(), layout, values.data(),
                               ref == nullptr ? nullptr : ref->data(), words, code.data(),
                               TheWorkspace()));
  return code;
}

bool DecodedByCpu(Layout layout, std::span<const std::byte> code, int64_t words, const Bytes* ref,
                  Bytes& values) {
  values.assign(words * WordBytes(layout), std::byte{0});
  lossless::Decoder decoder(lossless::BestKernels(), TheWorkspace());
  Status status = decoder.Open(layout, code, words, ref != nullptr);
  for (int64_t at = 0; status.ok() && decoder.next_words() > 0;) {
    const int64_t bytes = decoder.next_words() * WordBytes(layout);
    status = decoder.Next(values.data() + at, ref == nullptr ? nullptr : ref->data() + at);
    at += bytes;
  }
  return status.ok();
}

Bytes EncodedByKernels(Layout layout, const Bytes& values, const Bytes* ref, int64_t offset = 0,
                       int64_t most_blocks = 0) {
  const int64_t words = static_cast<int64_t>(values.size()) / WordBytes(layout);
  Guarded src(values.size(), offset), other(ref == nullptr ? 0 : values.size(), offset);
  src.Fill(values);
  if (ref != nullptr) other.Fill(*ref);
  // Every alignment of the target.
  static int64_t turn = 0;
  const int64_t bound = 8 + cuda::SegmentsOf(words) + words * WordBytes(layout);
  Guarded dst(bound, turn++ % 16);
  testing::EmulatedLauncher launcher;
  int64_t size = -1, host_size = -1;
  cuda::WithLayout(layout, [&]<Layout known>() {
    Guarded workspace(cuda::Workspaces<known>::Encode(words));
    CHECK_EQ(cuda::EncodeWith<known>(launcher, {.layout = layout,
                                                .words = words,
                                                .src = src.data(),
                                                .ref = ref == nullptr ? nullptr : other.data(),
                                                .dst = dst.data(),
                                                .size = &size,
                                                .host_size = &host_size,
                                                .workspace = workspace.data(),
                                                .most_blocks = most_blocks}),
             0);
    CHECK(most_blocks == 0 || launcher.last_blocks == std::min(most_blocks, cuda::SegmentsOf(words)));
    CHECK(workspace.Intact());
    return 0;
  });
  CHECK(dst.Intact() && src.Intact() && other.Intact());
  CHECK_EQ(host_size, size);
  if (!CHECK(size >= 0 && size <= bound)) return {};
  Bytes code = dst.Values();
  code.resize(size);
  return code;
}

bool DecodedByKernels(Layout layout, std::span<const std::byte> code, int64_t words,
                      const Bytes* ref, Bytes& values, int64_t offset = 0, bool in_place = false) {
  static int64_t turn = 0;
  Guarded payload(code.size(), turn++ % 16);
  std::copy(code.begin(), code.end(), payload.data());
  const int64_t bytes = words * WordBytes(layout);
  Guarded dst(bytes, offset), other(ref == nullptr ? 0 : bytes, offset);
  if (ref != nullptr) other.Fill(*ref);
  if (in_place) dst.Fill(*ref);
  testing::EmulatedLauncher launcher;
  int32_t status = -1;
  const auto size = static_cast<int64_t>(code.size());
  cuda::WithLayout(layout, [&]<Layout known>() {
    Guarded workspace(cuda::Workspaces<known>::Decode(words));
    const std::byte* const from = in_place ? dst.data() : other.data();
    CHECK_EQ(cuda::DecodeWith<known>(launcher, {.layout = layout,
                                                .words = words,
                                                .payload = payload.data(),
                                                .payload_bytes = size,
                                                .payload_size = turn % 2 == 0 ? &size : nullptr,
                                                .ref = ref == nullptr ? nullptr : from,
                                                .dst = dst.data(),
                                                .status = &status,
                                                .workspace = workspace.data()}),
             0);
    CHECK(workspace.Intact());
    return 0;
  });
  CHECK(dst.Intact() && other.Intact() && payload.Intact());
  CHECK(status == 0 || status == 1);
  values = dst.Values();
  return status == 0;
}

constexpr Kind kKinds[] = {Kind::kConstant, Kind::kNoise,  Kind::kGaussian,  Kind::kSpecial,
                           Kind::kSmall,    Kind::kSparse, Kind::kChanging, Kind::kZeroSegments};

Bytes Values(Layout layout, int64_t words, Kind kind, uint64_t seed) {
  return testing::LosslessValues(layout, words, kind, seed);
}

bool CheckSame(Layout layout, const Bytes& values, const Bytes* ref = nullptr, int64_t offset = 0) {
  const int64_t words = static_cast<int64_t>(values.size()) / WordBytes(layout);
  const Bytes expected = EncodedByCpu(layout, values, ref);
  const Bytes code = EncodedByKernels(layout, values, ref, offset);
  Bytes decoded;
  const bool same = CHECK(code == expected);
  const bool valid = CHECK(DecodedByKernels(layout, expected, words, ref, decoded, offset));
  return same && valid && CHECK(decoded == values);
}

template <typename F>
void ForEachLayout(F&& f) {
  for (int l = 0; l < lossless::kLayoutCount; ++l) f(static_cast<Layout>(l));
}

TEST(cuda_lossless_lengths) {
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

TEST(cuda_lossless_segments) {
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

TEST(cuda_lossless_on_few_blocks) {
  ForEachLayout([](Layout layout) {
    const Bytes values = Values(layout, 3 * lossless::kSegmentWords + 700, kKinds[0], 5);
    const Bytes all = EncodedByKernels(layout, values, nullptr);
    for (int64_t most : {1, 2}) CHECK(EncodedByKernels(layout, values, nullptr, 0, most) == all);
  });
}

TEST(cuda_lossless_delta) {
  Random random(6);
  ForEachLayout([&](Layout layout) {
    for (int64_t words : {int64_t{1}, int64_t{64}, int64_t{1000}, lossless::kSegmentWords + 4097}) {
      const Bytes ref = Values(layout, words, Kind::kGaussian, 3);
      CheckSame(layout, Values(layout, words, Kind::kNoise, 4), &ref);
      Bytes values = ref;
      for (std::byte& b : values) {
        if (random() % 20 == 0) b ^= static_cast<std::byte>(random() & 3);
      }
      CheckSame(layout, values, &ref);
      Bytes decoded;
      const Bytes code = EncodedByCpu(layout, values, &ref);
      CHECK(DecodedByKernels(layout, code, words, &ref, decoded, 0, true) && decoded == values);
      // A difference without a reference, and the other way about.
      CHECK(!DecodedByKernels(layout, code, words, nullptr, decoded));
      const Bytes whole = EncodedByCpu(layout, values, nullptr);
      CHECK(!DecodedByKernels(layout, whole, words, &ref, decoded));
    }
  });
}

TEST(cuda_lossless_unaligned) {
  ForEachLayout([](Layout layout) {
    const Bytes values = Values(layout, 20000, Kind::kGaussian, 9);
    const Bytes ref = Values(layout, 20000, Kind::kSparse, 9);
    for (int64_t offset : {1, 3}) {
      CheckSame(layout, values, nullptr, offset * WordBytes(layout));
      CheckSame(layout, values, &ref, offset * WordBytes(layout));
    }
  });
}

bool CheckVerdict(Layout layout, const Bytes& code, int64_t words) {
  Bytes expected, decoded;
  const bool valid = DecodedByCpu(layout, code, words, nullptr, expected);
  return CHECK_EQ(DecodedByKernels(layout, code, words, nullptr, decoded), valid) &&
         (!valid || CHECK(decoded == expected));
}

TEST(cuda_lossless_prefixes) {
  for (Layout layout : {Layout::kBFloat16, Layout::kFloat64, Layout::kFloat16}) {
    for (Kind kind : {Kind::kGaussian, Kind::kSparse}) {
      const Bytes code = EncodedByCpu(layout, Values(layout, 200, kind, 12), nullptr);
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

// JAXCCOMP_MUTATIONS sets how many altered frames there are.
TEST(cuda_lossless_mutations) {
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
        originals.push_back({layout, words, EncodedByCpu(layout, Values(layout, words, kind, 13),
                                                         nullptr)});
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

// More segments than a region's chain holds, and regions that are cut anywhere.
TEST(cuda_lossless_many_segments) {
  for (Kind kind : {Kind::kGaussian, Kind::kConstant, Kind::kZeroSegments, Kind::kNoise}) {
    const int64_t words = 40 * lossless::kSegmentWords + 77;
    CheckSame(Layout::kBytes1, Values(Layout::kBytes1, words, kind, 21));
    CheckSame(Layout::kBFloat16, Values(Layout::kBFloat16, words, kind, 21));
  }
}

}  // namespace
}  // namespace jaxccomp
