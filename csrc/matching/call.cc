#include "matching/call.h"

#include "matching/hash.h"

namespace jaxccomp {

int OpSpec::Destination() const {
  return collective == Collective::kRecv ? kNobody : static_cast<int>(pairs.at(0));
}

int OpSpec::Source() const {
  if (collective == Collective::kSend) return kNobody;
  return static_cast<int>(pairs.at(collective == Collective::kSendrecv ? 1 : 0));
}

// The sender and the receiver of a message compute the same signature. It leaves out the tag, by which they match.
uint64_t OpSpec::MessageSignature(const std::string& message_shapes) const {
  uint64_t hash = Mix(0, static_cast<uint64_t>(Collective::kSend) * 2 + has_ref);
  hash = Mix(hash, codec);
  hash = Mix(hash, algorithm);
  if (staged) hash = Mix(hash, "staged");
  return Mix(hash, message_shapes);
}

uint64_t OpSpec::ReceiveSignature() const {
  return MessageSignature(collective == Collective::kSendrecv ? recv_shapes : shapes);
}

uint64_t OpSpec::Signature() const {
  if (PointToPoint()) return MessageSignature(shapes);
  uint64_t hash = Mix(0, static_cast<uint64_t>(collective));
  hash = Mix(hash, static_cast<uint64_t>(reduce_op) * 2 + mean);
  hash = Mix(hash, static_cast<uint64_t>(root));
  hash = Mix(hash, codec);
  hash = Mix(hash, algorithm);
  if (mpi) hash = Mix(hash, "mpi");
  if (staged) hash = Mix(hash, "staged");
  hash = Mix(hash, shapes);
  hash = Mix(hash, static_cast<uint64_t>(tag) * 16 + feedback * 8 + has_ref * 4 + reverse * 2 +
                       ordered);
  for (int64_t count : counts) hash = Mix(hash, static_cast<uint64_t>(count));
  // The pairs of sendrecv differ between ranks.
  if (collective == Collective::kPermute) {
    for (int64_t member : pairs) hash = Mix(hash, static_cast<uint64_t>(member));
  }
  return hash;
}

namespace {

std::string PartnerText(int member) {
  return member == OpSpec::kAnySource ? "any" : std::to_string(member);
}

std::string TagText(const char* name, int64_t tag) {
  if (tag == 0) return "";
  return name + (tag == OpSpec::kAnyTag ? std::string("any") : std::to_string(tag));
}

}  // namespace

// Longer lists of counts are left out of the text: they do not help to find a mistake.
constexpr size_t kMaxCounts = 16;

std::string OpSpec::ToString() const {
  const CollectiveInfo& info = Info(collective);
  std::string text(info.name);
  text += "(";
  if (info.reduces) text += (mean ? "mean" : std::string(Name(reduce_op))) + ", ";
  text += shapes.empty() && PointToPoint() ? "nothing" : shapes;
  if (info.rooted) text += ", root=" + std::to_string(root);
  if (PointToPoint()) {
    const bool both = collective == Collective::kSendrecv;
    const bool alike = !both || (tag == recv_tag && shapes == recv_shapes);
    if (Destination() >= 0) text += ", dest=" + std::to_string(Destination());
    if (!alike) text += TagText(", send_tag=", tag) + ", receives " +
                   (recv_shapes.empty() ? "nothing" : recv_shapes);
    if (Source() != kNobody) text += ", source=" + PartnerText(Source());
    text += alike ? TagText(", tag=", tag) : TagText(", recv_tag=", recv_tag);
  } else if (tag != 0) {
    text += ", tag=" + std::to_string(tag);
  }
  if (!counts.empty() && counts.size() <= kMaxCounts) {
    for (size_t i = 0; i < counts.size(); ++i) {
      text += (i == 0 ? ", counts=" : "/") + std::to_string(counts[i]);
    }
  }
  if (codec != "raw") text += ", codec=" + codec;
  if (has_ref) text += ", with ref";
  if (feedback) text += ", with feedback";
  if (mpi) text += ", backend=mpi";
  if (staged) text += ", on GPUs";
  if (algorithm != "auto") text += ", algorithm=" + algorithm;
  text += ")";
  if (!where.empty()) text += " at " + where;
  return text;
}

}  // namespace jaxccomp
