#include "codec/library/zfp_library.h"

namespace jaxccomp::library {
namespace {

// Version 1 of the interface; 0.5 has different types.
constexpr const char* kSonames[] = {"libzfp.so.1"};
constexpr unsigned kStreamFormat = 5;

}  // namespace

Zfp::Zfp() : library_("zfp", kSonames) {
  library_.Find("zfp_stream_open", &open);
  library_.Find("zfp_stream_close", &close);
  library_.Find("zfp_stream_set_bit_stream", &set_bits);
  library_.Find("zfp_stream_rewind", &rewind);
  library_.Find("zfp_stream_set_rate", &set_rate);
  library_.Find("zfp_stream_set_precision", &set_precision);
  library_.Find("zfp_stream_set_accuracy", &set_accuracy);
  library_.Find("zfp_stream_maximum_size", &maximum_size);
  library_.Find("zfp_field_1d", &make_field);
  library_.Find("zfp_field_free", &free_field);
  library_.Find("zfp_field_set_pointer", &set_pointer);
  library_.Find("zfp_field_set_type", &set_type);
  library_.Find("zfp_field_set_size_1d", &set_size);
  library_.Find("zfp_compress", &compress);
  library_.Find("zfp_decompress", &decompress);
  library_.Find("stream_open", &open_bits);
  library_.Find("stream_close", &close_bits);
  const unsigned* format = nullptr;
  const size_t* word_bits = nullptr;
  library_.Find("zfp_codec_version", &format);
  library_.Find("stream_word_bits", &word_bits);
  missing_ = library_.missing();
  if (missing_.empty() && (*format != kStreamFormat || *word_bits != kZfpWordBits)) {
    missing_ = "the zfp library found writes streams of format " + std::to_string(*format) +
               " in words of " + std::to_string(*word_bits) + " bits, not 5 in words of 64";
  }
}

}  // namespace jaxccomp::library
