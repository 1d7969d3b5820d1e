package sparkdl.comm.ibatch

import scala.collection.mutable

/**
 * How long iterations take, one after another, with given batches, if everything takes what the profiles say. A [[Plan]]
 * has one direction begin with an idle network; here both share it. Pulls of an iteration begin during the backward pass
 * before, as soon as their layers are updated.
 *
 * All ranks do the same at the same time. So there is one link, both of whose directions are equally busy. Start-ups follow
 * one another, and cost the link nothing. Of the fetched blocks the most urgent one has the link, as
 * sparkdl.comm.ps.Incoming says, and overtakes one that is half here; inline blocks, which come inside of their
 * notices, wait for none but share the bandwidth. What is summed is updated when backward is done with a layer, or at once
 * after its end; with one batch for all pulls or all pushes, only then.
 *
 * @param push with the times of backward as `compute`
 */
private[ibatch] final class Iteration(pull: Profile, push: Profile) {
  require(pull.layers == push.layers, s"as many layers are pulled (${pull.layers}) as pushed (${push.layers})")

  /** Seconds of an iteration when they have settled. Both in the order of the layers, as a [[Plan]] has them. */
  def seconds(pulls: IndexedSeq[Batch], pushes: IndexedSeq[Batch]): Double = new Run(pulls, pushes).settled()

  private final class Transfer(val batch: Int, val isPull: Boolean, val firstLayer: Int, var left: Double) {
    def urgency: (Boolean, Int) = (isPull, if (isPull) firstLayer else -firstLayer)
  }

  private final class Run(pulls: IndexedSeq[Batch], pushes: IndexedSeq[Batch]) {
    private val layers = pull.layers
    private val pullOf = batchOfEachLayer(pulls)
    private val pushOf = batchOfEachLayer(pushes)
    private val ahead = pulls.size > 1 && pushes.size > 1

    private var now = 0.0
    private val begins = mutable.ArrayBuffer.empty[Double]

    // Forward computes layers 0 to L - 1 in steps 0 to L - 1, backward L - 1 to 0 in the next L.
    private var step = 0
    private var computed = Double.PositiveInfinity // when this step will be; never while it waits
    private val here = Array.fill(pulls.size)(false)

    private var started = 0.0 // when the last start-up will be over
    private val starting = mutable.Queue.empty[(Double, Transfer)]
    private val fetched = mutable.ArrayBuffer.empty[Transfer] // the most urgent one moves, the others wait for it
    private val noticed = mutable.ArrayBuffer.empty[Transfer]

    private val toPush = new Array[Int](pushes.size) // layers of each batch that backward has yet to do
    private val toUpdate = new Array[Int](pulls.size)
    private val sent = mutable.Queue.empty[Int]
    private var updated = 0

    def settled(): Double = {
      pulls.indices.foreach(ask(_, isPull = true))
      begin()
      while (begins.size < Iteration.Settled) advance()
      val count = Iteration.Settled / 2
      (begins.last - begins(begins.size - 1 - count)) / count
    }

    private def batchOfEachLayer(batches: IndexedSeq[Batch]): Array[Int] =
      batches.zipWithIndex.flatMap { case (batch, number) => Seq.fill(batch.last - batch.first + 1)(number) }.toArray

    /** To what happens next. */
    private def advance(): Unit = {
      val moving = if (fetched.isEmpty) noticed else noticed :+ fetched.minBy(_.urgency)
      val arrival = if (moving.isEmpty) Double.PositiveInfinity else now + moving.map(_.left).min * moving.size
      val start = starting.headOption.fold(Double.PositiveInfinity)(_._1)
      val next = math.min(arrival, math.min(start, computed))
      moving.foreach(_.left -= (next - now) / moving.size)
      now = next
      if (next == arrival) {
        val first = moving.minBy(_.left)
        fetched -= first
        noticed -= first
        arrived(first)
      } else if (next == start) move(starting.dequeue()._2)
      else stepDone()
    }

    private def move(transfer: Transfer): Unit = {
      val (profile, batches) = if (transfer.isPull) (pull, pulls) else (push, pushes)
      if (profile.comesWithNotice(batches(transfer.batch))) noticed += transfer else fetched += transfer
    }

    private def ask(batch: Int, isPull: Boolean): Unit = {
      val profile = if (isPull) pull else push
      val Batch(first, last) = (if (isPull) pulls else pushes) (batch)
      started = math.max(now, started) + profile.startup
      starting.enqueue((started, new Transfer(batch, isPull, first, profile.transfer.slice(first - 1, last).sum)))
    }

    private def arrived(transfer: Transfer): Unit =
      if (transfer.isPull) {
        here(transfer.batch) = true
        if (step < layers && computed.isInfinite) compute()
      } else {
        sent.enqueue(transfer.batch)
        if (step == 2 * layers) update()
      }

    private def begin(): Unit = {
      begins += now
      pulls.indices.foreach(batch => toUpdate(batch) = pulls(batch).last - pulls(batch).first + 1)
      pushes.indices.foreach(batch => toPush(batch) = pushes(batch).last - pushes(batch).first + 1)
      updated = 0
      step = 0
      compute()
    }

    /** Begins with this step, unless its parameters are not here. */
    private def compute(): Unit =
      if (step >= layers) computed = now + push.compute(2 * layers - 1 - step)
      else computed = if (here(pullOf(step))) now + pull.compute(step) else Double.PositiveInfinity

    private def stepDone(): Unit = {
      val layer = 2 * layers - 1 - step
      step += 1
      if (step == layers) pulls.indices.foreach(here(_) = false)
      if (step > layers) {
        toPush(pushOf(layer)) -= 1
        if (toPush(pushOf(layer)) == 0) ask(pushOf(layer), isPull = false)
      }
      if (step < 2 * layers) compute() else computed = Double.PositiveInfinity
      if (step == 2 * layers || ahead && step > layers) update()
    }

    /** What was sent is updated, and pulled; the next iteration begins with the last of it. */
    private def update(): Unit = {
      while (sent.nonEmpty) {
        val batch = pushes(sent.dequeue())
        (batch.first to batch.last).map(layer => pullOf(layer - 1)).foreach { whole =>
          toUpdate(whole) -= 1
          if (toUpdate(whole) == 0) ask(whole, isPull = true)
        }
        updated += 1
      }
      if (updated == pushes.size) begin()
    }
  }
}

private[ibatch] object Iteration {
  private val Settled = 9
}
