// arc4random for the static libstdc++ of wheels. libstdc++ calls it in std::random_device, and that of glibc exists from
// version 2.36 on: without this definition, wheels would need that version.

#include <sys/random.h>

#include <cstdint>

extern "C" uint32_t arc4random() {
  uint32_t value = 0;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
  }
  return value;
}
