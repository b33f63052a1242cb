#include "execution/trace.h"

#include "matching/hash.h"

namespace jaxccomp {

uint64_t MessageNumber(const Header& header) {
  uint64_t number = 4;
  for (const uint64_t part : {header.communicator, header.thread, header.sequence, header.site,
                              header.iteration, uint64_t{header.tag}}) {
    number = Mix(number, part);
  }
  const auto ends = uint64_t{static_cast<uint32_t>(header.source)} << 32 |
                    static_cast<uint32_t>(header.destination);
  return Mix(number, ends);
}

}  // namespace jaxccomp
