// Kernels for every processor.
#include "codec/lossless/generic.inl"

namespace jaxccomp::lossless {
namespace {

template <Layout layout>
void Split(const void* src, const void* ref, int64_t count, uint8_t* const* planes) {
  SplitFrom<layout>(0, src, ref, count, planes);
}

template <Layout layout>
void Merge(void* dst, const void* ref, int64_t count, const uint8_t* const* planes) {
  MergeFrom<layout>(0, dst, ref, count, planes);
}

template <int kCodeBits>
int64_t EncodeLevel(const uint8_t* in, int64_t count, const uint8_t* symbols, uint8_t* bits,
                    uint8_t* escapes) {
  uint8_t code_of[256];
  for (uint8_t& code : code_of) code = kCodeBits == 2 ? 3 : 1;
  // Backwards: a level with fewer than three symbols repeats the first one, whose code is 0.
  for (int s = (kCodeBits == 2 ? 2 : 0); s >= 0; --s) code_of[symbols[s]] = s;

  uint8_t* const first = escapes;
  for (int64_t i = 0; i < count; i += 64) {
    const int64_t group = count - i < 64 ? count - i : 64;
    uint64_t low = 0, high = 0;
    for (int64_t j = 0; j < group; ++j) {
      const uint8_t byte = in[i + j];
      const uint64_t code = code_of[byte];
      low |= (code & 1) << j;
      high |= (code >> 1) << j;
      *escapes = byte;
      escapes += code == (kCodeBits == 2 ? 3 : 1);
    }
    const int64_t piece_bytes = PieceBytes(group);
    Store(bits, low);
    if (kCodeBits == 2) Store(bits + piece_bytes, high);
    bits += kCodeBits * piece_bytes;
  }
  return escapes - first;
}

template <int kCodeBits>
int64_t DecodeLevel(const uint8_t* bits, int64_t count, const uint8_t* symbols,
                    const uint8_t* escapes, uint8_t* out) {
  const uint8_t table[4] = {symbols[0], kCodeBits == 2 ? symbols[1] : symbols[0],
                            kCodeBits == 2 ? symbols[2] : symbols[0], 0};
  const uint8_t* const first = escapes;
  for (int64_t i = 0; i < count; i += 64) {
    const int64_t group = count - i < 64 ? count - i : 64;
    const int64_t piece_bytes = PieceBytes(group);
    const uint64_t low = Load<uint64_t>(bits) & LowBits(group);
    const uint64_t high =
        kCodeBits == 2 ? Load<uint64_t>(bits + piece_bytes) & LowBits(group) : low;
    bits += kCodeBits * piece_bytes;
    for (int64_t j = 0; j < group; ++j) {
      out[i + j] = table[kCodeBits == 2 ? (low >> j & 1) | (high >> j & 1) << 1 : 0];
    }
    for (uint64_t left = low & high; left != 0; left &= left - 1) {
      out[i + __builtin_ctzll(left)] = *escapes++;
    }
  }
  return escapes - first;
}

void Histogram(const uint8_t* in, int64_t count, uint16_t* counts) {
  CountEach(in, count, counts);
}

void Pack(const uint8_t* in, int64_t count, int width, uint8_t* bits) {
  for (int64_t i = 0; i < count; i += 64) {
    const int64_t group = count - i < 64 ? count - i : 64;
    for (int b = 0; b < width; ++b) {
      uint64_t piece = 0;
      for (int64_t j = 0; j < group; ++j) {
        piece |= static_cast<uint64_t>(in[i + j] >> b & 1) << j;
      }
      Store(bits, piece);
      bits += PieceBytes(group);
    }
  }
}

void Unpack(const uint8_t* bits, int64_t count, int width, uint8_t* out) {
  for (int64_t i = 0; i < count; i += 64) {
    const int64_t group = count - i < 64 ? count - i : 64;
    for (int64_t j = 0; j < group; ++j) out[i + j] = 0;
    for (int b = 0; b < width; ++b) {
      const uint64_t piece = Load<uint64_t>(bits);
      for (int64_t j = 0; j < group; ++j) {
        out[i + j] |= static_cast<uint8_t>((piece >> j & 1) << b);
      }
      bits += PieceBytes(group);
    }
  }
}

}  // namespace

#define JAXCCOMP_KERNELS kGenericKernels
#define JAXCCOMP_KERNELS_NAME "generic"
#include "codec/lossless/table.inl"

}  // namespace jaxccomp::lossless
