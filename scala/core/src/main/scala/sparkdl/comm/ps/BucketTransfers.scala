// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.util.concurrent.{CompletableFuture, TimeUnit}

import sparkdl.comm.CommException
import sparkdl.comm.CommException.{Deadline, Protocol}
import sparkdl.comm.ibatch.{Batch, ComputingTimes, RankReport}

/**
 * Transfers of one rank's buckets, iteration by iteration. The rank is a worker, and the server of
 * the shard with its number.
 *
 * An iteration on version v consists of these operations, each bucket by bucket. First pull(v).
 * When all of v has arrived, push(v) during backward. After backward: prefetch(v + 1), collect(v),
 * the optimizer's update, publish(v + 1). If parameters are pulled ahead, these four begin as soon
 * as all of v has arrived, and go on during backward. The iterations are bulk-synchronous, which
 * makes the memory safe to reuse:
 *
 *  - A rank pushes gradients of v only after it has pulled all of v. So a server that has collected
 *   some gradients from every rank retires the blocks of v, and only then may the optimizer write.
 *  - A server publishes a bucket of v + 1 only after it has collected the gradients of its layers.
 *   So a rank that has pulled all of v + 1 retires its gradients of v, and only then may backward
 *   write the next ones.
 *  - Parameters of v + 1 arrive in the memory that forward and backward of v compute with, so
 *   prefetch comes after them. If parameters are pulled ahead, they arrive in the memory of v - 1.
 *
 * Call one operation at a time. Notices, transfers and sums complete on other threads.
 *
 * @param segment the rank's memory, laid out as `map` says
 * @param firstPulls buckets of parameters until [[cut]] changes them
 * @param firstPushes buckets of gradients until [[cut]] changes them
 */
private[comm] final class BucketTransfers private[ps] (
    node: PsNode,
    settings: SessionSettings,
    map: SegmentMap,
    segment: Segment,
    inbox: Inbox,
    incoming: IncomingBlocks,
    outgoing: OutgoingBlocks,
    firstPulls: IndexedSeq[Batch],
    firstPushes: IndexedSeq[Batch]
) {
  private val rank = map.rank
  private val others = (0 until map.layout.world).filter(_ != rank)
  private val blocks = new SegmentBlocks(segment, map)
  private val summedBuckets = new SummedBuckets
  private val pullTimes, pushTimes = settings.profileIterations.map(new NetworkTimes(_))

  // Slices of each bucket: by bucket, then server.
  private var pulls = map.slices(firstPulls)
  private var pushes = map.slices(firstPushes)
  private var inFlight = IndexedSeq.empty[InFlightBucket]
  private var reductions = reduce(0)
  private var pulledCount = 0
  private var collectedCount = 0

  // Last version whose parameters have all arrived. All ranks begin with equal values.
  private var completeVersion = if (map.encodings.parameters.inPlace) 0L else -1L

  /**
   * Set the buckets in which layers travel from the next version on. All ranks set the same buckets
   * for the same version, between their last push and the next prefetch.
   */
  def cut(pull: IndexedSeq[Batch], push: IndexedSeq[Batch]): Unit = {
    pulls = map.slices(pull)
    pushes = map.slices(push)
  }

  /** Serve a bucket of this rank's shard. Its values of `version` must be in place. */
  def publish(version: Long, bucket: Int): Unit = {
    inbox.checkNotFailed()
    val slice = pulls(bucket)(rank)
    if (!slice.isEmpty)
      segment.access(outgoing.parameters(
        bucket,
        version,
        slice,
        blocks.encodeParameters(slice, version)
      ))
  }

  /** Begin to fetch the other shards' parameters of `version`, each bucket when it is published. */
  def prefetch(version: Long): Unit = {
    inbox.checkNotFailed()
    if (pulledCount != inFlight.size)
      throw new CommException(
        Protocol,
        s"prefetch of version $version before the last one was pulled"
      )
    pulledCount = 0
    var before = BlockFetch.Complete
    inFlight = pulls.indices.map { bucket =>
      val arriving =
        new InFlightBucket(others.map(server => server -> pulls(bucket)(server)).collect {
          case (server, slice) if !slice.isEmpty =>
            val place = blocks.placeParameters(slice, version, _: Long, _: Long)
            val sink = sinkFor(
              blocks.parametersTarget(slice, version),
              map.encodings.parameters,
              slice,
              place
            )
            incoming.parameters(server, bucket, version, slice, sink, before)
        })
      if (settings.isSequential) before = arriving.all
      arriving
    }
  }

  /** Wait until the parameters of `version` have arrived, up to those of `bucket`. */
  def pull(version: Long, bucket: Int): Transfer = {
    inbox.checkNotFailed()
    val begin = node.clock.nanoTime
    val from = pulledCount
    while (pulledCount <= bucket) {
      val arriving = inFlight(pulledCount)
      finish(
        arriving,
        arriving.all,
        begin,
        s"pull of bucket $pulledCount",
        version,
        Notice.Parameters,
        pulledCount
      )
      pulledCount += 1
    }
    val finished = inFlight.slice(from, pulledCount)
    val transfer = Transfer(finished.map(_.bytes).sum, finished.map(_.times))
    pullTimes.foreach(_.add(transfer, ends = pulledCount == inFlight.size))
    if (pulledCount == inFlight.size) {
      completeVersion = version
      retire(Notice.Gradients, version - 1, deadline(begin))
    }
    node.metrics.pulledBytes.inc(transfer.bytes)
    node.metrics.pullTime.update(node.clock.nanoTime - begin, TimeUnit.NANOSECONDS)
    transfer
  }

  /** Give this rank's gradients of a bucket of `version`, which must be final, to the servers. */
  def push(version: Long, bucket: Int): Unit = {
    inbox.checkNotFailed()
    if (version != completeVersion)
      throw new CommException(Protocol, s"push of version $version before all of it was pulled")
    others.foreach { server =>
      val slice = pushes(bucket)(server)
      if (!slice.isEmpty)
        segment.access(outgoing.gradients(
          server,
          bucket,
          version,
          slice,
          blocks.encodeGradients(slice)
        ))
    }
    reductions(bucket).own.complete(null)
  }

  /** Wait until this rank's shard has the sum of all ranks' gradients of a bucket. */
  def collect(version: Long, bucket: Int): Transfer = {
    inbox.checkNotFailed()
    val begin = node.clock.nanoTime
    val found = reductions(bucket)
    finish(
      found.inFlight,
      found.sum,
      begin,
      s"push of bucket $bucket",
      version,
      Notice.Gradients,
      bucket
    )
    val reduced = node.clock.nanoTime
    val arrived = found.inFlight.times.map(_.lastByte).foldLeft(begin)(_ max _)
    if (!found.slice.isEmpty) retire(Notice.Parameters, version, deadline(begin))
    val seconds = (reduced - arrived) / 1e9
    val transfer =
      Transfer(found.inFlight.bytes, Seq(found.inFlight.times), seconds, Some(found.sum.join()))
    collectedCount += 1
    pushTimes.foreach(_.add(transfer, ends = collectedCount == reductions.size))
    if (collectedCount == reductions.size) {
      collectedCount = 0
      reductions = reduce(version + 1)
    }
    node.metrics.pushedBytes.inc(transfer.bytes)
    node.metrics.pushTime.update(arrived - begin, TimeUnit.NANOSECONDS)
    node.metrics.aggregateTime.update(reduced - arrived, TimeUnit.NANOSECONDS)
    transfer
  }

  /**
   * Return this rank's measurements in its last steps: `computing` from its front end, and its
   * transfers.
   */
  def report(computing: ComputingTimes): RankReport = RankReport(
    computing.forward.flatMap(layers => pullTimes.flatMap(_.profile(layers, 0))),
    computing.backward.flatMap(layers => pushTimes.flatMap(_.profile(layers, computing.update))),
    computing.iteration
  )

  /**
   * Return how many buckets of gradients of `version` are added up, counted from the first one.
   * Call it at any time, on any thread.
   */
  def countSummed(version: Long): Int = summedBuckets.count(version)

  /**
   * Begin to fetch the gradients of `version` for this rank's shard, each bucket when it is pushed.
   */
  private def reduce(version: Long): IndexedSeq[GradientReduction] = {
    summedBuckets.clear()
    pushes.indices.map(reduce(version, _))
  }

  private def reduce(version: Long, bucket: Int): GradientReduction = {
    val slice = pushes(bucket)(rank)
    val arriving = new InFlightBucket((if (slice.isEmpty) Nil else others).map { worker =>
      val sink =
        sinkFor(blocks.gradientsTarget(worker, slice), map.encodings.gradients, slice, (_, _) => ())
      incoming.gradients(worker, bucket, version, slice, sink)
    })
    val own = new CompletableFuture[Void]
    val small = map.encodings.gradients.maxBytes(slice.shape) <= node.blocks.inlineThreshold
    val sum =
      incoming.compute(s"add up bucket $bucket of version $version", small, arriving.all, own) {
        val begun = node.clock.nanoTime
        blocks.reduce(slice, arriving.blocks.map(block => block.from -> block.received))
        summedBuckets.add(version, bucket)(value =>
          segment.access(segment.putLong(map.summed, value))
        )
        Span(begun, node.clock.nanoTime)
      }
    new GradientReduction(slice, arriving, own, sum)
  }

  private def sinkFor(
      to: IndexedSeq[ByteRange],
      as: BlockEncoding,
      slice: ShardSlice,
      arrived: (Long, Long) => Unit
  ) =
    new SegmentSink(segment, to, as.isValidLength(slice.shape, _), node.clock, arrived)

  /** Wait for `done`, which completes with or after all of `arriving`. */
  private def finish(
      arriving: InFlightBucket,
      done: CompletableFuture[_],
      begin: Long,
      what: String,
      version: Long,
      kind: Notice.Kind,
      bucket: Int
  ): Unit = {
    inbox.await(done, deadline(begin)) {
      val missing = arriving.blocks.filterNot(_.done.isDone)
      new CommException(
        Deadline,
        if (missing.isEmpty)
          s"rank $rank did not finish its $what of version $version in ${settings.timeoutSeconds} s"
        else
          s"rank $rank waited ${settings.timeoutSeconds} s for" +
            s" ${missing.map(_.from).mkString("rank ", ", rank ", "")} in $what of version" +
            s" $version (${missing.map(_.maxBytes).sum} bytes); a rank that needs longer than" +
            " that for a step needs a larger spark.sparkdl.comm.timeout",
        missing.headOption.fold(-1)(_.from)
      )
    }
    arriving.blocks.foreach(block => inbox.forget(kind, block.from, bucket, version))
  }

  private def deadline(begin: Long): Long = begin + (settings.timeoutSeconds * 1e9).toLong

  private def retire(kind: Notice.Kind, version: Long, end: Long): Unit =
    outgoing.retire(kind, version, () => inbox.hasFailed || node.clock.nanoTime >= end).foreach {
      name =>
        inbox.checkNotFailed()
        throw new CommException(
          Deadline,
          s"a reader still held block $name of rank $rank after ${settings.timeoutSeconds} s"
        )
    }
}
