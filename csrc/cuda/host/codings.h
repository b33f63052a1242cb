// Which codecs have kernels. Fixed-rate codecs run on the streams of programs, codecs of variable size in the stage.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "codec/codec.h"
#include "codec/nvcomp/formats.h"
#include "cuda/kernels/fixed_rate/fixed_rate.h"

namespace jaxccomp::cuda {

// nullopt unless the codec is one fixed-rate format.
std::optional<FixedRate> FindFixedRate(const Codec& codec);

// "lossless", or one of nvCOMP's codecs.
struct Packing {
  std::optional<nvcomp::Spec> nvcomp;   // nullopt: "lossless"
};
// nullopt if the codec has no kernels.
std::optional<Packing> FindPacking(const Codec& codec);

// Caches the results of FindFixedRate or FindPacking by the codec's spec. Thread-safe.
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
