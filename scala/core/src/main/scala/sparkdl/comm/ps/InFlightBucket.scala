// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.util.BitSet
import java.util.concurrent.{CompletableFuture, CompletionStage}
import java.util.function.{Function => JFunction}

import sparkdl.comm.{Clock, CommException}

/**
 * Transfer of one block from rank `from`. The block is in its notice, or its transfer begins when
 * the notice arrives.
 *
 * @param isElsewhere true if another executor has the block
 * @param start begins to transfer a block of so many bytes
 * @param onFailure called with the reason of a failure, before `done` fails
 */
private[ps] final class BlockFetch(
    val from: Int,
    isElsewhere: Boolean,
    sink: SegmentSink,
    clock: Clock,
    ready: CompletableFuture[Notice],
    start: Long => BlockFetch.InProgress,
    onFailure: Throwable => Unit
) {
  @volatile private var requested: () => Long = () => sink.firstByteNanos
  @volatile private var lastByte = 0L

  /** Maximum bytes that another executor sends for the block. */
  val maxBytes: Long = if (isElsewhere) sink.maxBytes else 0

  /** Bytes that another executor sent for the block. */
  def bytes: Long = if (isElsewhere) received else 0

  /** Bytes of the block, once it has arrived. */
  def received: Long = sink.received

  private val take: JFunction[Notice, CompletionStage[Void]] = notice => {
    if (!sink.expects(notice.blockBytes))
      throw new CommException(
        CommException.Protocol,
        s"rank $from announced a block of ${notice.blockBytes} bytes: expected at most" +
          s" ${sink.maxBytes}",
        from
      )
    if (notice.isInline) {
      sink.wholeBlock.write(notice.contents)
      BlockFetch.Complete
    } else {
      val transfer = start(notice.blockBytes)
      requested = transfer.requested
      transfer.done
    }
  }

  val done: CompletableFuture[Void] = ready
    .thenCompose[Void](take)
    .whenComplete { (_, cause) =>
      lastByte = clock.nanoTime
      if (cause != null) onFailure(cause)
    }

  def times: BlockTimes =
    BlockTimes(from, requested(), sink.firstByteNanos, lastByte, sink.received)
}

private[ps] object BlockFetch {

  /**
   * Transfer in progress.
   *
   * @param requested returns when it was requested, or 0 before that
   * @param done completes when the block has arrived
   */
  final case class InProgress(requested: () => Long, done: CompletableFuture[Void])

  val Complete: CompletableFuture[Void] = CompletableFuture.completedFuture(null)
}

/** Blocks of one bucket, from all ranks that have part of it. */
private[ps] final class InFlightBucket(val blocks: Seq[BlockFetch]) {
  val all: CompletableFuture[Void] = CompletableFuture.allOf(blocks.map(_.done): _*)
  def bytes: Long = blocks.map(_.bytes).sum
  def times: Seq[BlockTimes] = blocks.map(_.times)
}

/**
 * Sum of all ranks' gradients of one bucket, for this rank's shard.
 *
 * @param own completes when this rank's own gradients are final
 * @param sum completes when the gradients of all ranks have been added up
 */
private[ps] final class GradientReduction(
    val slice: ShardSlice,
    val inFlight: InFlightBucket,
    val own: CompletableFuture[Void],
    val sum: CompletableFuture[Span]
)

/**
 * Count of the buckets of gradients whose sums are ready, from the first one on. Any number of
 * threads may use it at once.
 */
private[ps] final class SummedBuckets {
  private val done = new BitSet

  // The worker reads this value between layers of its backward pass, where it must not wait for an
  // answer.
  @volatile private var value = 0L

  /** Begin another version, which has no sums yet. */
  def clear(): Unit = synchronized(done.clear())

  /**
   * Record that the sum of a bucket is ready.
   *
   * @param publish called with the new value of [[SegmentMap.summed]]
   */
  def add(version: Long, bucket: Int)(publish: Long => Unit): Unit = synchronized {
    done.set(bucket)
    value = version * SegmentMap.SummedVersion + done.nextClearBit(0)
    publish(value)
  }

  /**
   * Return how many buckets of `version` have summed gradients, counted from the first one up to
   * the first that has not. Return 0 if the newest sum is of another version.
   */
  def count(version: Long): Int = {
    val now = value
    if (now / SegmentMap.SummedVersion == version) (now % SegmentMap.SummedVersion).toInt else 0
  }
}
