// Which codecs have kernels. Codecs of a fixed rate run on the streams of programs, codecs of variable size in the
// stage.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "codec/codec.h"
#include "codec/nvcomp/formats.h"
#include "cuda/kernels/fixed_rate/fixed_rate.h"

namespace jaxccomp::cuda {

// None where the codec is not one format of a fixed rate.
std::optional<FixedRate> FindFixedRate(const Codec& codec);

// "lossless", or one of nvCOMP's.
struct Packing {
  std::optional<nvcomp::Spec> nvcomp;   // none: "lossless"
};
// None where the codec has no kernels.
std::optional<Packing> FindPacking(const Codec& codec);

// The results of such a function, by the spec of the codec. Thread-safe.
template <typename T>
class CodecCache {
 public:
  explicit CodecCache(std::optional<T> (*find)(const Codec&)) : find_(find) {}

  std::optional<T> Find(const Codec& codec) const {
    const std::string& spec = codec.traits().spec;
    std::lock_guard lock(mutex_);
    auto known = known_.find(spec);
    if (known == known_.end()) known = known_.emplace(spec, find_(codec)).first;
    return known->second;
  }

 private:
  std::optional<T> (*const find_)(const Codec&);
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::optional<T>> known_;
};

}  // namespace jaxccomp::cuda
