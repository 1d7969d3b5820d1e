package sparkdl.comm.bigdl

import sparkdl.comm.ibatch.Batch

/**
 * Buckets of consecutive layers, numbered from 0 in the order of their transfer.
 *
 * @param batches their layers, counted from 1
 */
private[bigdl] final class LayerBuckets(val batches: IndexedSeq[Batch]) {

  /** Layers of each bucket, counted from 0. */
  val layers: IndexedSeq[Range] = batches.map(batch => batch.first - 1 until batch.last)

  /** Number of each layer's bucket. */
  val bucketOf: IndexedSeq[Int] = {
    val numbers = for ((range, bucket) <- layers.zipWithIndex; layer <- range) yield layer -> bucket
    numbers.sorted.map(_._2)
  }

  def size: Int = batches.size
}

/** Countdown of the layers that each bucket still waits for. */
private[bigdl] final class Countdown(buckets: LayerBuckets) {
  private val left = buckets.layers.map(_.size).toArray

  /** Count a layer. Return its bucket if the bucket is complete now. */
  def countDown(layer: Int): Option[Int] = {
    val bucket = buckets.bucketOf(layer)
    left(bucket) -= 1
    if (left(bucket) == 0) Some(bucket) else None
  }
}
