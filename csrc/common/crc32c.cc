#include "common/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace jaxccomp {
namespace {

using Table = std::array<uint32_t, 256>;

constexpr uint32_t kPolynomial = 0x82f63b78;   // bit-reversed

// The effect of a byte on the checksum (first table), and its effect k zero bytes later.
constexpr std::array<Table, 8> MakeByteTables() {
  std::array<Table, 8> tables = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t crc = tables[k - 1][byte];
      tables[k][byte] = crc >> 8 ^ tables[0][crc & 255];
    }
  }
  return tables;
}

constexpr std::array<Table, 8> kBytes = MakeByteTables();

uint64_t Load64(const std::byte* at) {
  uint64_t value;
  std::memcpy(&value, at, 8);
  return value;
}

uint32_t UpdateGeneric(uint32_t crc, const std::byte* at, size_t n) {
  for (; n >= 8; at += 8, n -= 8) {
    const uint64_t word = Load64(at) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kBytes[7 - k][word >> (8 * k) & 255];
  }
  for (; n > 0; ++at, --n) crc = crc >> 8 ^ kBytes[0][(crc ^ static_cast<uint8_t>(*at)) & 255];
  return crc;
}

#if defined(__x86_64__)

// The instruction takes three cycles but can start every cycle. So three strides are computed at a time, and their
// checksums are combined by moving each over the strides that follow it.
constexpr size_t kStride = 2048;
constexpr size_t kLine = 64;   // of a cache

// The effect of kStride zero bytes on a checksum, by its bytes: the operation is linear.
const std::array<Table, 4>& StrideTables() {
  static const std::array<Table, 4> tables = [] {
    std::array<uint32_t, 32> of_bit;
    for (size_t bit = 0; bit < 32; ++bit) {
      uint32_t crc = uint32_t{1} << bit;
      for (size_t i = 0; i < kStride; ++i) crc = crc >> 8 ^ kBytes[0][crc & 255];
      of_bit[bit] = crc;
    }
    std::array<Table, 4> made = {};
    for (size_t k = 0; k < 4; ++k) {
      for (size_t byte = 0; byte < 256; ++byte) {
        for (size_t bit = 0; bit < 8; ++bit) {
          if (byte >> bit & 1) made[k][byte] ^= of_bit[8 * k + bit];
        }
      }
    }
    return made;
  }();
  return tables;
}

uint32_t OverStride(const std::array<Table, 4>& tables, uint64_t crc) {
  return tables[0][crc & 255] ^ tables[1][crc >> 8 & 255] ^ tables[2][crc >> 16 & 255] ^
         tables[3][crc >> 24 & 255];
}

__attribute__((target("sse4.2"))) uint32_t UpdateSse42(uint32_t crc, const std::byte* at,
                                                       size_t n) {
  uint64_t a = crc;
  if (n >= 3 * kStride) {
    const std::array<Table, 4>& tables = StrideTables();
    for (; n >= 3 * kStride; at += 3 * kStride, n -= 3 * kStride) {
      uint64_t b = 0, c = 0;
      for (size_t i = 0; i < kStride; i += kLine) {
        // Prefetch the next three strides: the processor's own prefetching needs longer streams, and reads three
        // short ones from memory at a third of the speed.
        for (size_t line = 0; line < 3; ++line) {
          _mm_prefetch(reinterpret_cast<const char*>(at + 3 * (kStride + i) + line * kLine), _MM_HINT_T0);
        }
        for (size_t j = i; j < i + kLine; j += 8) {
          a = _mm_crc32_u64(a, Load64(at + j));
          b = _mm_crc32_u64(b, Load64(at + kStride + j));
          c = _mm_crc32_u64(c, Load64(at + 2 * kStride + j));
        }
      }
      a = OverStride(tables, OverStride(tables, a) ^ b) ^ c;
    }
  }
  for (; n >= 8; at += 8, n -= 8) a = _mm_crc32_u64(a, Load64(at));
  auto rest = static_cast<uint32_t>(a);
  for (; n > 0; ++at, --n) rest = _mm_crc32_u8(rest, static_cast<uint8_t>(*at));
  return rest;
}

#endif

}  // namespace

uint32_t GenericCrc32c(std::span<const std::byte> bytes, uint32_t before) {
  return ~UpdateGeneric(~before, bytes.data(), bytes.size());
}

uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t before) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ~UpdateSse42(~before, bytes.data(), bytes.size());
#endif
  return GenericCrc32c(bytes, before);
}

}  // namespace jaxccomp
