#include "common/stream_copy.h"

#include <cstddef>
#include <cstring>
#include <fstream>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace jaxccomp {

int64_t StreamFromBytes() {
  static const int64_t bytes = [] {
    int64_t kib = 0;
    char unit = 0;
    std::ifstream("/sys/devices/system/cpu/cpu0/cache/index3/size") >> kib >> unit;
    const bool told = kib > 0 && unit == 'K';
    return (told ? kib << 10 : int64_t{32} << 20) / 2;
  }();
  return bytes;
}

void StreamCopy(void* to, const void* from, int64_t bytes) {
#if defined(__SSE2__)
  constexpr int64_t kLine = 64;
  auto* dst = static_cast<std::byte*>(to);
  auto* src = static_cast<const std::byte*>(from);
  const auto head = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(dst) % kLine);
  if (bytes < head + kLine) {
    if (bytes > 0) std::memcpy(dst, src, static_cast<size_t>(bytes));
    return;
  }
  std::memcpy(dst, src, static_cast<size_t>(head));
  dst += head;
  src += head;
  const int64_t lines = (bytes - head) / kLine;
  for (int64_t i = 0; i < lines; ++i, dst += kLine, src += kLine) {
    const auto* in = reinterpret_cast<const __m128i*>(src);
    auto* out = reinterpret_cast<__m128i*>(dst);
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  // Other threads must see these stores before the signal that the copy is done.
  _mm_sfence();
  std::memcpy(dst, src, static_cast<size_t>(bytes - head - lines * kLine));
#else
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
#endif
}

}  // namespace jaxccomp
