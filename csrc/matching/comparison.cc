#include "matching/comparison.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "matching/mismatch.h"

namespace jaxccomp {
namespace {

constexpr size_t kMaxLines = 8;
constexpr size_t kLongestListBytes = kAlongBytes - 16;
constexpr std::string_view kMore = "...";

std::vector<std::string_view> LinesOf(std::string_view list) {
  std::vector<std::string_view> lines;
  while (!list.empty()) {
    const size_t end = std::min(list.find('\n'), list.size());
    if (end > 0) lines.push_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::string Shown(const std::vector<std::string_view>& lines) {
  std::string text;
  for (size_t i = 0; i < std::min(lines.size(), kMaxLines); ++i) {
    text.append("\n    ").append(lines[i]);
  }
  if (lines.size() > kMaxLines) {
    text += "\n    and " + std::to_string(lines.size() - kMaxLines) + " more";
  }
  return text.empty() ? "\n    none" : text;
}

}  // namespace

std::string ListThatTravels(std::string list) {
  if (list.size() <= kLongestListBytes) return list;
  list.resize(list.rfind('\n', kLongestListBytes) + 1);
  return list.append(kMore);
}

std::string HeadOf(std::string_view list) { return Shown(LinesOf(list)); }

Status ProgramMismatch(const Endpoint& endpoint, std::string_view mine, const Header& header,
                       std::string_view theirs) {
  const std::vector<std::string_view> here = LinesOf(mine), there = LinesOf(theirs);
  std::vector<std::string_view> only_here, only_there;
  std::set_difference(here.begin(), here.end(), there.begin(), there.end(),
                      std::back_inserter(only_here));
  std::set_difference(there.begin(), there.end(), here.begin(), here.end(),
                      std::back_inserter(only_there));
  // Shortened lists cannot be compared line by line.
  const bool whole = !mine.ends_with(kMore) && !theirs.ends_with(kMore);
  const bool reordered = whole && only_here.empty() && only_there.empty();
  const bool differ = whole && !reordered;
  const Communicator& comm = *endpoint.communicator;
  std::string text = "collective mismatch in launch " + std::to_string(header.sequence) +
                     ", found before it ran: the program of " +
                     comm.MemberName(endpoint.member) + (differ ? " alone has" : " has") +
                     Shown(differ ? only_here : here) + "\n  and the program of " +
                     comm.MemberName(header.source) + (differ ? " alone has" : " has") +
                     (reordered ? " the same in another order" : "") +
                     Shown(differ ? only_there : there);
  text.append("\n  ").append(kMismatchAdvice);
  return {Code::kFailedPrecondition, std::move(text)};
}

}  // namespace jaxccomp
