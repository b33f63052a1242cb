// The codec "delta": round trips, equal bytes from every kernel table, size compared with the entropy bound, and
// truncated or altered bytes.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "check.h"
#include "codec/delta/kernels.h"
#include "codec/delta/model.h"
#include "codec/delta/symbols.h"
#include "codec/registry.h"

namespace jaxccomp {
namespace {

using namespace delta;

const Codec& TheCodec() { return **LookupCodec("delta"); }

struct Values {
  DType dtype;
  std::vector<std::byte> ref, values;
  int64_t count() const { return std::ssize(ref) / SizeBytes(dtype); }
};

template <typename Word>
std::vector<std::byte> BytesOf(const std::vector<Word>& words) {
  std::vector<std::byte> bytes(words.size() * sizeof(Word));
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

// Weights as bfloat16, before and after an update of size `step` with a heavy tail.
Values Updated(int64_t count, double step, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02f);
  std::gamma_distribution<float> gamma(0.2f, 5.0f);
  const auto round = [](float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  };
  std::vector<uint16_t> before, after;
  for (int64_t i = 0; i < count; ++i) {
    const float w = normal(random);
    const float by = gamma(random) * static_cast<float>(step) * (random() % 2 == 0 ? 1.0f : -1.0f);
    before.push_back(round(w));
    after.push_back(round(w + by));
  }
  return {DType::kBFloat16, BytesOf(before), BytesOf(after)};
}

// Random bits; each value changes with probability `changed`, in the way `how`.
Values Anything(DType dtype, int64_t count, double changed, int how, uint32_t seed) {
  std::mt19937_64 random(seed);
  const int64_t size = SizeBytes(dtype);
  Values made{dtype, std::vector<std::byte>(static_cast<size_t>(count * size)), {}};
  for (auto& byte : made.ref) byte = static_cast<std::byte>(random());
  made.values = made.ref;
  for (int64_t i = 0; i < count; ++i) {
    if (std::uniform_real_distribution<>(0, 1)(random) >= changed) continue;
    uint64_t word = 0;
    std::byte* const at = made.values.data() + i * size;
    std::memcpy(&word, at, static_cast<size_t>(size));
    word = how == 0 ? word + 1 : how == 1 ? word - random() % 64 : random();
    std::memcpy(at, &word, static_cast<size_t>(size));
  }
  return made;
}

std::vector<std::byte> Encoded(const Codec& codec, const Values& v) {
  Workspace workspace;
  CodingContext context(workspace);
  context.ref = v.ref.data();
  std::vector<std::byte> code(
      static_cast<size_t>(codec.MaxEncodedBytes(v.dtype, v.count())));
  const Result<int64_t> bytes =
      codec.Encode(v.dtype, v.values.data(), v.count(), code, context);
  if (!CHECK_OK(bytes)) return {};
  code.resize(static_cast<size_t>(*bytes));
  return code;
}

Status Decoded(const Values& v, std::span<const std::byte> code, std::vector<std::byte>* to) {
  Workspace workspace;
  CodingContext context(workspace);
  context.ref = v.ref.data();
  to->assign(v.ref.size(), std::byte{0x5a});
  return TheCodec().Decode(v.dtype, code, to->data(), v.count(), context);
}

void CheckRoundTrip(const Values& v) {
  const std::vector<std::byte> code = Encoded(TheCodec(), v);
  std::vector<std::byte> back;
  if (CHECK_OK(Decoded(v, code, &back))) CHECK(back == v.values);
  // Decode into the memory of the delta base.
  Workspace workspace;
  CodingContext context(workspace);
  back = v.ref;
  context.ref = back.data();
  if (CHECK_OK(TheCodec().Decode(v.dtype, code, back.data(), v.count(), context))) {
    CHECK(back == v.values);
  }
}

TEST(delta_round_trips_are_exact) {
  uint32_t seed = 0;
  for (DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32, DType::kFloat64, DType::kInt8}) {
    for (int64_t count : {1, 2, 31, 33, 64, 65, 1000, 4097, 70001}) {
      for (double changed : {0.0, 1e-3, 0.02, 0.3, 1.0}) {
        for (int how : {0, 1, 2}) CheckRoundTrip(Anything(dtype, count, changed, how, ++seed));
      }
    }
  }
  for (double step : {0.0, 1e-7, 1e-5, 1e-3, 1.0}) CheckRoundTrip(Updated(kBlockValues + 777, step, 5));
}

TEST(delta_round_trips_special_values) {
  // All kinds of NaN, infinity, denormals and both zeros, from and to each other.
  const std::vector<uint16_t> special = {0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x7f7f,
                                         0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f81, 0xffff, 0x3f80};
  std::vector<uint16_t> before, after;
  for (uint16_t a : special) {
    for (uint16_t b : special) {
      before.push_back(a);
      after.push_back(b);
    }
  }
  CheckRoundTrip({DType::kBFloat16, BytesOf(before), BytesOf(after)});
  CheckRoundTrip({DType::kFloat16, BytesOf(before), BytesOf(after)});
}

TEST(delta_of_unchanged_values_takes_one_byte) {
  const Values v = Updated(kBlockValues, 0, 1);
  CHECK_EQ(std::ssize(Encoded(TheCodec(), v)), 1);
  Values one = v;
  one.values[1000] ^= std::byte{1};
  CHECK(std::ssize(Encoded(TheCodec(), one)) < 40);
}

// The entropy of the changes, if the frequencies of each class are known.
double EntropyBits(const Values& v) {
  std::map<int, std::map<uint16_t, double>> seen;
  for (int64_t i = 0; i < v.count(); ++i) {
    const uint16_t ref = BFloat16Word::Load(v.ref.data() + 2 * i);
    ++seen[BFloat16Word::ExponentOf(ref)]
          [BFloat16Word::Step(ref, BFloat16Word::Load(v.values.data() + 2 * i))];
  }
  double bits = 0;
  for (const auto& [exponent, steps] : seen) {
    double all = 0;
    for (const auto& [step, times] : steps) all += times;
    for (const auto& [step, times] : steps) bits += times * std::log2(all / times);
  }
  return bits;
}

TEST(delta_size_is_within_5_percent_of_the_entropy) {
  const Codec& lossless = **LookupCodec("lossless");
  for (double step : {1e-7, 1e-6, 1e-5, 1e-4}) {
    const Values v = Updated(1 << 20, step, 7);
    const auto bits = static_cast<double>(8 * Encoded(TheCodec(), v).size());
    CHECK(bits < EntropyBits(v) / 0.95);
    CHECK(Encoded(TheCodec(), v).size() < Encoded(lossless, v).size());
  }
}

TEST(delta_is_at_most_2_percent_larger_than_lossless) {
  for (int how : {0, 1, 2}) {
    for (double changed : {0.5, 0.9, 1.0}) {
      for (DType dtype : {DType::kBFloat16, DType::kFloat32}) {
        const Values v = Anything(dtype, 1 << 16, changed, how, 3);
        CHECK(Encoded(TheCodec(), v).size() <=
              Encoded(**LookupCodec("lossless"), v).size() * 1.02 + 1);
      }
    }
  }
}

// All outputs of a kernel table for one input.
struct KernelResults {
  std::vector<uint64_t> map, above, away, sides;
  std::vector<uint8_t> classes, kept, climbed, symbols, differences;
  std::vector<uint32_t> sums, counts, lengths, states, taken;
  std::vector<std::byte> advanced, code, low;
  bool operator==(const KernelResults&) const = default;
};

// Encodes and decodes bits twice, with the same states.
void RunLanes(decltype(Kernels::encode_few) encode, decltype(Kernels::decode_few) decode, int lanes,
              const std::vector<uint64_t>& bits, int64_t count, const LaneModel& model,
              KernelResults* r) {
  std::vector<std::byte> bytes(static_cast<size_t>(4 * count + 8 * kMaxLanes + 2 * kPad));
  std::byte* const end = bytes.data() + bytes.size() - kPad;
  std::vector<uint32_t> states(static_cast<size_t>(lanes), kMinLaneState);
  const std::vector<uint32_t> first = states;
  std::byte* begin = end;
  for (int times = 0; times < 2; ++times) {
    begin = encode(bits.data(), r->classes.data(), count, model, states.data(), begin);
  }
  r->code.insert(r->code.end(), begin, end);
  r->states.insert(r->states.end(), states.begin(), states.end());
  std::vector<uint64_t> decoded(bits.size());
  const std::byte* at = begin;
  const auto take = [&](const std::byte* until, std::vector<uint32_t>* of) {
    decoded.assign(bits.size(), ~uint64_t{0});
    at = decode(at, until, r->classes.data(), count, model.zero, of->data(), decoded.data());
    return at != nullptr;
  };
  std::vector<uint32_t> again = states;
  for (int times = 0; times < 2 && CHECK(take(end, &again)); ++times) CHECK(decoded == bits);
  CHECK(at == end && again == first);
  // A code that lacks one word is detected.
  if (begin == end) return;
  at = begin;
  CHECK(!take(end - 2, &states) || !take(end - 2, &states));
}

KernelResults RunAll(const Kernels& kernels, const Values& v, const LaneModel& lanes,
                     const uint16_t* weights) {
  const int64_t count = v.count();
  const bool two = SizeBytes(v.dtype) == 2;
  const auto words = static_cast<size_t>((count + 63) / 64);
  const auto room = static_cast<size_t>(count + 2 * kPad);
  KernelResults r;
  r.map.resize(words);
  const int64_t differ =
      (two ? kernels.map2 : kernels.map4)(v.values.data(), v.ref.data(), count, r.map.data());
  r.classes.resize(room);
  (v.dtype == DType::kBFloat16  ? kernels.bfloat16_classes
   : v.dtype == DType::kFloat16 ? kernels.float16_classes
                                : kernels.float32_classes)(
      v.ref.data(), count, v.dtype == DType::kFloat16 ? 20 : 130, r.classes.data());
  r.classes.resize(static_cast<size_t>(count));   // the kernels may write beyond `count`
  r.classes.resize(room);
  r.sums.resize(words);
  kernels.sums(r.classes.data(), count, weights, r.sums.data());

  r.kept.resize(room);
  const int64_t changes = kernels.keep(r.map.data(), r.classes.data(), count, r.kept.data());
  CHECK_EQ(changes, differ);
  const auto changes_size = static_cast<size_t>(changes);
  r.counts.resize(kClasses);
  kernels.count(r.kept.data(), changes, r.counts.data());
  r.lengths.resize(room);
  r.away.resize(words + kPad);
  const Changes list{r.lengths.data(), r.kept.data(), r.away.data()};
  (two ? kernels.steps2 : kernels.steps4)(v.values.data(), v.ref.data(), r.map.data(), count, list);
  r.advanced = v.ref;
  (two ? kernels.advance2 : kernels.advance4)(r.advanced.data(), r.map.data(), count, list);
  CHECK(r.advanced == v.values);

  r.symbols.resize(room);
  kernels.symbols(r.lengths.data(), changes, r.symbols.data());
  for (size_t i = 0; i < changes_size; ++i) CHECK_EQ(int{r.symbols[i]}, SymbolOf(r.lengths[i]));
  r.above.resize(words + 1);
  kernels.above(r.symbols.data(), changes, 3, r.above.data());
  r.climbed.resize(room);
  kernels.climb(r.map.data(), r.symbols.data(), count, r.climbed.data());

  r.differences.resize(room);
  r.sides.resize(words + 1);
  const uint8_t pivots[kClasses] = {2, 1, 3, 0, 5, 4, 9, 20, 1, 0, 0, 1, 2, 3, 6, 62};
  kernels.split(r.symbols.data(), r.kept.data(), changes, pivots, r.differences.data(),
                r.sides.data());
  std::vector<uint64_t> others = r.sides;
  for (uint64_t& word : others) word = ~word;
  std::vector<uint8_t> ups(room), downs(room), joined(room);
  kernels.keep(r.sides.data(), r.differences.data(), changes, ups.data());
  kernels.keep(others.data(), r.differences.data(), changes, downs.data());
  for (uint8_t& each : downs) each = static_cast<uint8_t>(~each);
  kernels.join(r.sides.data(), ups.data(), downs.data(), r.kept.data(), pivots, changes,
               joined.data());
  CHECK(std::equal(joined.begin(), joined.begin() + changes, r.symbols.begin()));

  r.low.resize(4 * room);
  BitWriter writer(r.low.data());
  kernels.put_low(r.lengths.data(), r.symbols.data(), changes, &writer);
  const auto low_bytes = static_cast<size_t>(writer.End() - r.low.data());
  r.taken.resize(room);
  BitReader reader(std::span(r.low).first(low_bytes));
  kernels.take_low(r.symbols.data(), changes, &reader, r.taken.data());
  CHECK(reader.AllTaken());
  CHECK(std::equal(r.taken.begin(), r.taken.begin() + changes, r.lengths.begin()));
  BitReader cut(std::span(r.low).first(low_bytes / 2));   // must not return bits beyond the end
  kernels.take_low(r.symbols.data(), changes, &cut, r.taken.data());
  CHECK(low_bytes < 2 || !cut.AllTaken());

  // No bit may be set in a class that never has a 1.
  std::vector<uint64_t> bits = r.map;
  for (int64_t i = 0; i < count; ++i) {
    if (r.classes[static_cast<size_t>(i)] == 3) bits[i / 64] &= ~(uint64_t{1} << (i % 64));
  }
  RunLanes(kernels.encode_few, kernels.decode_few, kFewLanes, bits, count, lanes, &r);
  RunLanes(kernels.encode_max, kernels.decode_max, kMaxLanes, bits, count, lanes, &r);
  // Contents beyond the last element are undefined.
  r.kept.resize(changes_size);
  r.lengths.resize(changes_size);
  r.symbols.resize(changes_size);
  r.differences.resize(changes_size);
  r.taken.resize(changes_size);
  r.low.resize(low_bytes);
  r.sides.resize((changes_size + 63) / 64);
  r.above.resize((changes_size + 63) / 64);
  r.away.resize((changes_size + 63) / 64);
  r.climbed.resize(static_cast<size_t>(count));
  r.classes.resize(static_cast<size_t>(count));
  return r;
}

TEST(delta_kernels_return_equal_bytes) {
  LaneModel lanes{};
  uint16_t weights[kClasses];
  for (int c = 0; c < kClasses; ++c) {
    lanes.Set(c, c == 3 ? kLaneScale : kLaneScale - std::min<uint32_t>(2u << c, kLaneScale - 2));
    weights[c] = static_cast<uint16_t>(1 << std::min(c, 12));
  }
  for (DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    for (int64_t count : {1, 15, 32, 33, 63, 64, 65, 95, 1000, 20011}) {
      for (double changed : {0.0, 0.02, 0.6, 1.0}) {
        for (int how : {1, 2}) {
          const Values v = Anything(dtype, count, changed, how, static_cast<uint32_t>(count));
          const KernelResults expected = RunAll(*RunnableKernels().back(), v, lanes, weights);
          for (const Kernels* kernels : RunnableKernels()) {
            CHECK(RunAll(*kernels, v, lanes, weights) == expected);
          }
        }
      }
    }
  }
}

TEST(delta_run_length_symbols_are_contiguous_and_equal_on_all_kernels) {
  std::vector<uint32_t> lengths;
  int last = -1;
  for (uint32_t length = 1; length < 70000; ++length) {
    const int symbol = SymbolOf(length);
    CHECK(symbol == last || symbol == last + 1);
    if (symbol != last) CHECK_EQ(kOfSymbol.minimum[symbol], length);
    last = symbol;
    lengths.push_back(length);
  }
  for (int bit = 1; bit < 32; ++bit) {
    const uint32_t power = uint32_t{1} << bit;
    for (uint32_t length : {power - 1, power, power | (power >> 1), (power | (power >> 1)) - 1}) {
      const int symbol = SymbolOf(length);
      CHECK(length - kOfSymbol.minimum[symbol] < uint32_t{1} << kOfSymbol.raw_bits[symbol]);
      lengths.push_back(length);
    }
  }
  CHECK_EQ(SymbolOf(~uint32_t{0}), kSymbols - 1);
  const auto count = std::ssize(lengths);
  lengths.resize(lengths.size() + kPad);
  std::vector<uint8_t> symbols(lengths.size());
  for (const Kernels* kernels : RunnableKernels()) {
    kernels->symbols(lengths.data(), count, symbols.data());
    for (int64_t i = 0; i < count; ++i) {
      if (lengths[i] <= uint32_t{1} << 31) CHECK_EQ(int{symbols[i]}, SymbolOf(lengths[i]));
    }
  }
}

TEST(delta_decoder_refuses_truncated_and_most_altered_bytes) {
  std::mt19937 random(1);
  int64_t refused = 0, tried = 0;
  for (double step : {1e-6, 1e-4}) {
    const Values v = Updated(5000, step, 3);
    const std::vector<std::byte> code = Encoded(TheCodec(), v);
    std::vector<std::byte> back;
    for (size_t length = 0; length < code.size(); ++length) {
      CHECK(!Decoded(v, std::span(code).first(length), &back).ok());
    }
    for (int i = 0; i < 4000; ++i, ++tried) {
      std::vector<std::byte> altered = code;
      for (uint32_t times = 1 + random() % 3; times > 0; --times) {
        altered[random() % altered.size()] = static_cast<std::byte>(random());
      }
      refused += !Decoded(v, altered, &back).ok();
    }
    std::vector<std::byte> longer = code;
    longer.push_back(std::byte{0});
    CHECK(!Decoded(v, longer, &back).ok());
  }
  // Must not crash; most altered codes are rejected.
  CHECK(refused > tried * 9 / 10);
}

TEST(delta_decoder_requires_the_delta_base) {
  const Values v = Updated(1000, 1e-4, 3);
  const std::vector<std::byte> code = Encoded(TheCodec(), v);
  Workspace workspace;
  std::vector<std::byte> back(v.ref.size());
  const Status status =
      TheCodec().Decode(v.dtype, code, back.data(), v.count(), CodingContext(workspace));
  CHECK(!status.ok() && status.message().find("without a reference") != std::string::npos);
}

}  // namespace
}  // namespace jaxccomp
