// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import java.util.Arrays

import sparkdl.comm.gang.JvmRank
import sparkdl.comm.ps.{Segment, SegmentMap}

/**
 * Transfers of one rank's parameters and gradients. Each layer of the replicas waits for its
 * parameters. A bucket is pushed when its last gradient is complete. BigDL computes on the heap and
 * the parameter server has its own memory, so parameters and gradients are copied.
 *
 * Call [[open]] first. A step is [[begin]], the replicas' forward and backward with
 * [[onForwardEnded]] between them, and [[end]]. The methods of [[LayerListener]] are called during
 * forward and backward. After [[end]], the next version's parameters are still on their way;
 * [[await]] waits for all of them. Call [[close]] last, also after a failure.
 *
 * @param makeShard makes the part that this rank updates
 */
private[bigdl] final class ParameterExchange(
    rank: JvmRank,
    settings: IBatchSettings,
    replicas: Replicas,
    makeShard: (SegmentMap, Segment) => Shard
) extends LayerListener {
  import ParameterExchange._

  private val layers = replicas.layers
  private val map = rank.session.open(rank.peers, layers.counts.map(_.toLong), settings.session)
  private val memory = allocateOrRefuse(map.bytes)(Segment.allocate(map.bytes))
  private val buckets =
    new GangBuckets(rank, settings.batching, map.traffic(rank.inlineThreshold, density = 1))
  private val profiler =
    if (buckets.needsProfiles)
      Some(new Profiler(layers.size, settings.batching.profileIterations, rank.clock))
    else None
  private val uses = new LayerUses(layers.size)
  private val inPlace = map.encodings.parameters.inPlace
  private val accountKeeper = new AccountKeeper(replicas.watches, rank.clock)

  memory.putFloats(map.parameters(0), replicas.weights, replicas.weights.length)
  private val transfers = rank.session.attach(memory, buckets.pulls.batches, buckets.pushes.batches)
  private val shard = makeShard(map, memory)

  private var gates = IndexedSeq.empty[LayerGate]
  private var version = 0L
  private var progress = Progress(1, 1, 0, 0)
  private var pulls = buckets.pulls
  private var pushes = buckets.pushes
  private var prefetched = if (inPlace) 0L else -1L

  // Buckets of `pulls` that the replicas can use. All ranks begin with the same values.
  @volatile private var pulledCount = if (inPlace) pulls.size else 0

  // State of the current step.
  private var pullsEarly = false
  private var taken = new Array[Boolean](layers.size)
  private var awaited = new Countdown(pushes)
  private var collectedCount = 0
  private var unpublished = Option.empty[Countdown]

  if (!inPlace) {
    prefetch(0)
    pulls.batches.indices.foreach(transfers.publish(0, _))
  }

  /** Make the replicas' layers wait for their parameters from now on. */
  def open(): Unit = {
    gates = IndexedSeq.tabulate(replicas.size)(new LayerGate(_, layers.layerOf, this))
    replicas.gate(gates)
  }

  def begin(now: Progress): Unit = synchronized {
    progress = now
    pullsEarly = map.pullsAhead && !buckets.isReportStep(step)
    taken = new Array[Boolean](layers.size)
    awaited = new Countdown(pushes)
    collectedCount = 0
    unpublished = None
    profiler.foreach(_.beginIteration(replicas.watches.map(_.seconds(Phase.Update)).sum))
    accountKeeper.beginIteration()
    if (version == 0) await() else uses.unreported.foreach(pullFor(_, replicas.watches(0)))
    prefetchNext()
    profiler.foreach(_.forward.begin())
  }

  override def onUse(replica: Int, layer: Int): Unit = {
    val timed = profiler.filter(_ => replica == 0)
    timed.foreach(_.forward.stop())
    if (version == 0) synchronized(uses.recordUse(layer))
    if (pulls.bucketOf(layer) >= pulledCount)
      synchronized(pullFor(layer, replicas.watches(replica)))
    timed.foreach(_.forward.start(layer))
  }

  /** Handle the end of forward: the replica knows its loss, and goes on with backward. */
  def onForwardEnded(replica: Int): Unit = {
    val timed = profiler.filter(_ => replica == 0)
    timed.foreach(_.forward.end())
    synchronized(
      pullAll(replicas.watches(replica))
    ) // before gradients are written: others may still fetch those of the last step
    timed.foreach(_.backward.begin())
  }

  override def onGradients(replica: Int, layer: Int): Unit = {
    val timed = profiler.filter(_ => replica == 0)
    timed.foreach(_.backward.record(layer))
    val watch = replicas.watches(replica)
    watch.time(Phase.Push)(synchronized {
      val complete = uses.isComplete(layer)
      if (pushes.size > 1) {
        if (uses.isTooLate(layer))
          throw new UnsupportedTrainingException(
            s"backward adds to the gradients of layer ${layer + 1} more often than in the first" +
              " step, after they were pushed: set spark.sparkdl.comm.ps.pushBatching=whole"
          )
        if (complete) takeGradients(layer)
      }
      if (pullsEarly) while (collectedCount < transfers.countSummed(version)) updateNext(watch)
    })
    timed.foreach(_.backward.skip())
  }

  /** End a step: backward is over on all replicas. */
  def end(): Unit = synchronized {
    profiler.foreach(_.backward.end())
    val watch = replicas.watches(0)
    watch.time(Phase.Push)(layers.counts.indices.reverse.filterNot(taken(_)).foreach(takeGradients))
    uses.endStep()
    var next = pushes
    if (buckets.isReportStep(step)) profiler.foreach { measured =>
      if (buckets.replan(transfers.report(measured.times))) {
        pulls = buckets.pulls
        next = buckets.pushes
        transfers.cut(pulls.batches, next.batches)
      }
      measured.restart()
    }
    prefetch(version + 1)
    while (collectedCount < pushes.size) updateNext(watch)
    version += 1
    pulledCount = 0
    pushes = next
  }

  /** Wait until all parameters are where the replicas compute. */
  def await(): Unit = synchronized(pullAll(replicas.watches(0)))

  def stretches: Seq[Stretch] = shard.stretches

  /** Description of the batches by rank 0, as JSON. */
  def batching: String = buckets.summary

  /** Return the account of this rank. All parameters must have arrived. */
  def account(seconds: Double): Account = accountKeeper.account(seconds)

  /** Release the replicas' gates: training is over. */
  def close(): Unit = gates.foreach(_.clear())

  /** Number of the current step, counted from 1. */
  private def step: Int = version.toInt + 1

  private def pullFor(layer: Int, watch: Stopwatch): Unit = pullUpTo(pulls.bucketOf(layer), watch)
  private def pullAll(watch: Stopwatch): Unit = pullUpTo(pulls.size - 1, watch)

  /** Wait for the parameters up to those of this bucket. */
  private def pullUpTo(bucket: Int, watch: Stopwatch): Unit =
    if (pulledCount <= bucket) watch.time(Phase.Pull)(pull(bucket))

  private def pull(bucket: Int): Unit = {
    val transfer = transfers.pull(version, bucket)
    memory.access {
      (pulledCount to bucket).foreach { number =>
        val (first, last) = (pulls.layers(number).head, pulls.layers(number).last)
        val (start, end) = (layers.starts(first), layers.starts(last) + layers.counts(last))
        memory.getFloats(map.parameters(version) + start * 4L, replicas.weights, start, end - start)
      }
    }
    pulledCount = bucket + 1
    accountKeeper.recordPull(transfer)
    prefetchNext()
  }

  private def prefetchNext(): Unit =
    if (pullsEarly && pulledCount == pulls.size) prefetch(version + 1)

  private def prefetch(next: Long): Unit = if (prefetched < next) {
    transfers.prefetch(next)
    prefetched = next
  }

  /**
   * Take a layer's gradients, complete on all replicas, from the replicas. The last layer of a
   * bucket pushes the bucket.
   */
  private def takeGradients(layer: Int): Unit = {
    val (start, count) = (layers.starts(layer), layers.counts(layer))
    val sum = replicas.gradients.head
    replicas.gradients.tail.foreach { other =>
      var i = start
      while (i < start + count) {
        sum(i) += other(i)
        i += 1
      }
    }
    memory.access(memory.putFloats(map.gradients + start * 4L, sum, start, count))
    replicas.gradients.foreach(Arrays.fill(_, start, start + count, 0f))
    taken(layer) = true
    awaited.countDown(layer).foreach(transfers.push(version, _))
  }

  /**
   * Update with the next bucket of gradients, once it is summed. Publish each bucket of parameters
   * when it is complete.
   */
  private def updateNext(watch: Stopwatch): Unit = watch.time(Phase.Push) {
    val transfer = transfers.collect(version, collectedCount)
    watch.move(Phase.Push, Phase.Aggregate, transfer.aggregateSeconds)
    accountKeeper.recordPush(transfer)
    val updated = pushes.layers(collectedCount)
    collectedCount += 1
    watch.time(Phase.Update)(shard.step(updated, progress))
    if (unpublished.isEmpty) unpublished = Some(new Countdown(pulls))
    unpublished.foreach(left =>
      updated.flatMap(left.countDown(_)).sorted.foreach(transfers.publish(version + 1, _))
    )
  }
}

private[bigdl] object ParameterExchange {

  /**
   * Allocate memory. Java's own error would end the executor, and then the executor of the next
   * attempt.
   *
   * @throws UnsupportedTrainingException if the JVM does not have so many bytes outside of its heap
   */
  def allocateOrRefuse[T](bytes: Long)(allocate: => T): T =
    try allocate
    catch {
      case e: OutOfMemoryError =>
        throw new UnsupportedTrainingException(
          s"a rank needs $bytes bytes outside of the heap, but its executor does not have them" +
            s" (${e.getMessage}): raise -XX:MaxDirectMemorySize in" +
            " spark.executor.extraJavaOptions (default: the heap's size), and" +
            " spark.executor.memoryOverhead by as much"
        )
    }
}
