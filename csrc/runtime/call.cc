#include "runtime/call.h"

#include "runtime/hash.h"

namespace jaxccomp {

uint64_t OpSpec::Signature() const {
  // The two ends of a message sign the same thing.
  uint64_t hash = Mix(0, static_cast<uint64_t>(PointToPoint() ? Collective::kSend : collective));
  hash = Mix(hash, static_cast<uint64_t>(reduce_op) * 2 + mean);
  hash = Mix(hash, static_cast<uint64_t>(root));
  hash = Mix(hash, codec);
  hash = Mix(hash, algorithm);
  if (nccl) hash = Mix(hash, borrows ? "nccl of XLA" : "nccl");
  hash = Mix(hash, shapes);
  hash = Mix(hash, static_cast<uint64_t>(tag) * 16 + feedback * 8 + referenced * 4 + reverse * 2 +
                       ordered);
  for (int64_t count : counts) hash = Mix(hash, static_cast<uint64_t>(count));
  // The pairs of sendrecv, send and recv are this rank's own.
  if (collective == Collective::kPermute) {
    for (int64_t member : pairs) hash = Mix(hash, static_cast<uint64_t>(member));
  }
  return hash;
}

// More do not help to find a mistake.
constexpr size_t kMostCounts = 16;

std::string OpSpec::ToString() const {
  const CollectiveInfo& info = Info(collective);
  std::string text(info.name);
  text += "(";
  if (info.reduces) text += (mean ? "mean" : std::string(Name(reduce_op))) + ", ";
  text += shapes;
  if (info.rooted) text += ", root=" + std::to_string(root);
  if (collective == Collective::kSend) text += ", dest=" + std::to_string(pairs.at(0));
  if (collective == Collective::kRecv) text += ", source=" + std::to_string(pairs.at(0));
  if (tag != 0) text += ", tag=" + std::to_string(tag);
  if (!counts.empty() && counts.size() <= kMostCounts) {
    for (size_t i = 0; i < counts.size(); ++i) {
      text += (i == 0 ? ", counts=" : "/") + std::to_string(counts[i]);
    }
  }
  if (codec != "raw") text += ", codec=" + codec;
  if (referenced) text += ", with ref";
  if (feedback) text += ", with feedback";
  if (nccl) text += ", backend=nccl";
  if (borrows) text += ", communicator=xla";
  if (algorithm != "auto") text += ", algorithm=" + algorithm;
  text += ")";
  if (!where.empty()) text += " at " + where;
  return text;
}

}  // namespace jaxccomp
