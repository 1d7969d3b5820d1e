package sparkdl.comm.bigdl

import sparkdl.comm.ibatch.Batch

/**
 * Buckets of consecutive layers, numbered from 0 in the order in which they travel.
 *
 * @param batches their layers, counted from 1
 */
private[bigdl] final class LayerBuckets(val batches: IndexedSeq[Batch]) {

  /** Those of each bucket, counted from 0. */
  val layers: IndexedSeq[Range] = batches.map(batch => batch.first - 1 until batch.last)

  /** For each layer, the number of its bucket. */
  val of: IndexedSeq[Int] = {
    val numbers = for ((range, bucket) <- layers.zipWithIndex; layer <- range) yield layer -> bucket
    numbers.sorted.map(_._2)
  }

  def size: Int = batches.size
}

/** Counts the layers of each bucket that are still awaited. */
private[bigdl] final class Countdown(buckets: LayerBuckets) {
  private val left = buckets.layers.map(_.size).toArray

  /** Counts one more layer; the bucket that is complete with it, if one is. */
  def arrived(layer: Int): Option[Int] = {
    val bucket = buckets.of(layer)
    left(bucket) -= 1
    if (left(bucket) == 0) Some(bucket) else None
  }
}
