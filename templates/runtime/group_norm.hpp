// Group normalisation of channels-last images, with the activation behind it:
//   y = activation(gamma (x - mean) / sqrt(var + eps) + beta)      mean, var per image and group of channels
//
// Slices are of images or of rows, the pixels of all images:
//   forward, images    one stage: an image is summed, then written while it is near
//   forward, rows      stage 0: means and squares of the slice's part of each image; stage 1: they are put together in
//                      slice order, and the slice's rows are written
//   backward, images   stage 0: as forward; the slice leaves dgamma and dbeta of its images. stage 1: some channels' sums
//                      over all slices
//   backward, rows     stage 0: sums of dy' and dy' (x - mean) of each part; stage 1: the slice's rows of dx, and some
//                      channels' sums over all parts
// A slice's share of the scratch is `values` doubles, padded to whole cache lines (scratch.hpp):
//   forward   2 per group and image that it touches       (images: one at a time)
//   backward  2 per channel and image that it touches     (images: one at a time, and 2 per channel of all its own)
//
// Rows pass through as those of batch norms do, and the kernels are compiled once for all plans, by group_norm.cpp.
#pragma once

#include <cstdint>

#include "fusion.hpp"
#include "scratch.hpp"
#include "slices.hpp"

namespace stepplan {

struct GroupNormShape {
  int64_t images, rows, channels, groups;  // rows: of an image
  int64_t most_images = 1;                 // that a slice of the rows touches
};

template <class T>
struct GroupNormForward {
  GroupNormShape shape;
  const T* x;
  T* y;  // may equal x
  const float* gamma;
  const float* beta;
  float eps;
  float* saved_mean;     // [images * groups]
  float* saved_inv_std;  // [images * groups]
};

template <class T>
struct GroupNormBackward {
  GroupNormShape shape;
  const T* dy;
  const T* x;
  T* dx;  // may equal dy
  const float* gamma;
  const float* beta;
  const float* saved_mean;
  const float* saved_inv_std;
  float* dgamma;
  float* dbeta;
};

template <Fusion fusion, class T>
void group_norm_images(const GroupNormForward<T>& a, int64_t slice, int64_t slices, void* scratch);

template <class T>
void group_norm_sums(const GroupNormForward<T>& a, int64_t slice, int64_t slices, void* scratch);

template <Fusion fusion, class T>
void group_norm_rows(const GroupNormForward<T>& a, int64_t slice, int64_t slices, const void* scratch);

template <Fusion fusion, class T>
void group_norm_backward_images(const GroupNormBackward<T>& a, int64_t slice, int64_t slices, void* scratch);

template <class T>
void group_norm_backward_totals(const GroupNormBackward<T>& a, int64_t slice, int64_t slices, const void* scratch);

template <Fusion fusion, class T>
void group_norm_backward_sums(const GroupNormBackward<T>& a, int64_t slice, int64_t slices, void* scratch);

template <Fusion fusion, class T>
void group_norm_backward_rows(const GroupNormBackward<T>& a, int64_t slice, int64_t slices, const void* scratch);

}  // namespace stepplan
