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

  /** A batch on its way. `left`: seconds of the link that it still needs; while it moves, as `work` was `since`. */
  private final class Transfer(
      val batch: Int,
      val isPull: Boolean,
      firstLayer: Int,
      val number: Int,
      var left: Double
  ) {
    val urgency: (Boolean, Int) = (isPull, if (isPull) firstLayer else -firstLayer)
    var since = 0.0
    def until: Double = since + left
  }

  /** How long the batches of one direction take, and which steps they are of. */
  private final class Direction(profile: Profile, val batches: IndexedSeq[Batch], steps: IndexedSeq[Batch]) {
    private val until = profile.transfer.scanLeft(0.0)(_ + _)
    val transfer: IndexedSeq[Double] = batches.map(batch => until(batch.last) - until(batch.first - 1))
    val comesWithNotice: IndexedSeq[Boolean] = batches.map(profile.comesWithNotice)
    val compute: IndexedSeq[Double] = steps.map(step => profile.compute.slice(step.first - 1, step.last).sum)
    val startup: Double = profile.startup

    /** Seconds from the begin of this step to the end of each of its layers, if the last layer is computed first. */
    def ends(step: Int): Iterator[Double] = {
      val Batch(first, last) = steps(step)
      (last to first by -1).iterator.scanLeft(0.0)((end, layer) => end + profile.compute(layer - 1)).drop(1)
    }

    /** By step, its batch. */
    val batchOf: IndexedSeq[Int] = {
      val batchOfLayer = batches.zipWithIndex.flatMap { case (batch, number) =>
        Seq.fill(batch.last - batch.first + 1)(number)
      }
      steps.map(step => batchOfLayer(step.first - 1))
    }
    val stepsOf: Map[Int, IndexedSeq[Int]] = steps.indices.groupBy(batchOf)
    def counts: Array[Int] = batches.indices.map(stepsOf(_).size).toArray
  }

  private final class Run(pulls: IndexedSeq[Batch], pushes: IndexedSeq[Batch]) {
    // Layers between which no batch ends are computed in one step, so that few batches take little time to look at.
    private val steps: IndexedSeq[Batch] = {
      val ends = (pulls ++ pushes).map(_.last).distinct.sorted
      (0 +: ends.init).zip(ends).map { case (before, last) => Batch(before + 1, last) }
    }
    private val layers = steps.size
    private val pulling = new Direction(pull, pulls, steps)
    private val pushing = new Direction(push, pushes, steps)
    private val ahead = pulls.size > 1 && pushes.size > 1

    private var now = 0.0
    private val begins = mutable.ArrayBuffer.empty[Double]

    // Forward computes layers 0 to L - 1 in steps 0 to L - 1, backward L - 1 to 0 in the next L.
    private var step = 0
    private var stepped = 0.0 // when it began
    private var computed = Double.PositiveInfinity // when this step will be; never while it waits
    private val here = Array.fill(pulls.size)(false)

    private var started = 0.0 // when the last start-up will be over
    private val starting = mutable.Queue.empty[(Double, Transfer)]
    private val inTurn = mutable.Queue.empty[Int] // pulls: the first one is on its way

    // Each of those that move has got `work` seconds of the link since the begin. Of the fetched ones only the first moves.
    private var work = 0.0
    private var asked = 0
    private val fetched = mutable.TreeSet.empty[Transfer](Ordering.by(_.urgency))
    private val noticed = mutable.TreeSet.empty[Transfer](Ordering.by((one: Transfer) => (one.until, one.number)))

    private val toPush = new Array[Int](pushes.size) // steps of each batch that backward has yet to do
    private val toUpdate = new Array[Int](pulls.size)
    private val sent = mutable.Queue.empty[Int]
    private var updated = 0
    private var updating = Double.PositiveInfinity // when something that was sent will be updated

    def settled(): Double = {
      pulls.indices.foreach(pullBatch)
      begin()
      while (begins.size < Iteration.Most && !repeats) advance()
      val count = if (repeats) 1 else Iteration.Most / 2
      (begins.last - begins(begins.size - 1 - count)) / count
    }

    /** Whether the last iterations took equally long. */
    private def repeats: Boolean = begins.size > Iteration.Alike && {
      val last = begins.takeRight(Iteration.Alike + 1)
      val periods = last.tail.zip(last).map { case (begin, before) => begin - before }
      periods.max - periods.min <= 1e-9 * periods.max
    }

    /** To what happens next. */
    private def advance(): Unit = {
      val moving = noticed.headOption ++ fetched.headOption
      val first = if (moving.isEmpty) None else Some(moving.minBy(_.until))
      val count = noticed.size + math.min(1, fetched.size)
      val arrival = first.fold(Double.PositiveInfinity)(one => now + math.max(0, one.until - work) * count)
      val start = starting.headOption.fold(Double.PositiveInfinity)(_._1)
      val next = Seq(arrival, start, updating, computed).min
      if (next == arrival) work = math.max(work, first.get.until) else if (count > 0) work += (next - now) / count
      now = next
      if (next == arrival) arrived(first.get)
      else if (next == start) move(starting.dequeue()._2)
      else if (next == updating) update()
      else stepDone()
    }

    private def move(transfer: Transfer): Unit = {
      transfer.since = work
      if ((if (transfer.isPull) pulling else pushing).comesWithNotice(transfer.batch)) noticed += transfer
      else
        changeFetched {
          fetched += transfer
        }
    }

    /** What moved so far may have to wait now, and what waited may move. */
    private def changeFetched(change: => Unit): Unit = {
      fetched.headOption.foreach { moving =>
        moving.left = moving.until - work
        moving.since = work
      }
      change
      fetched.headOption.foreach(_.since = work)
    }

    private def pullBatch(batch: Int): Unit = {
      if (pull.inTurn) inTurn.enqueue(batch)
      if (inTurn.size <= 1) ask(batch, isPull = true)
    }

    private def ask(batch: Int, isPull: Boolean): Unit = {
      val direction = if (isPull) pulling else pushing
      started = math.max(now, started) + direction.startup
      asked += 1
      val first = direction.batches(batch).first
      starting.enqueue((started, new Transfer(batch, isPull, first, asked, direction.transfer(batch))))
    }

    private def arrived(transfer: Transfer): Unit = {
      if (!noticed.remove(transfer)) changeFetched(fetched -= transfer)
      if (transfer.isPull) {
        here(transfer.batch) = true
        if (pull.inTurn) {
          inTurn.dequeue()
          inTurn.headOption.foreach(ask(_, isPull = true))
        }
        if (step < layers && computed.isInfinite) compute()
      } else {
        sent.enqueue(transfer.batch)
        if (step == 2 * layers) update() else if (ahead && step >= layers) updateAfterLayer()
      }
    }

    /** Between two of the layers that this step computes; after the last of them it is done anyway. */
    private def updateAfterLayer(): Unit =
      pushing.ends(2 * layers - 1 - step).map(stepped + _).find(_ >= now).filter(_ < computed).foreach { end =>
        updating = math.min(updating, end)
      }

    private def begin(): Unit = {
      begins += now
      pulling.counts.copyToArray(toUpdate)
      pushing.counts.copyToArray(toPush)
      updated = 0
      step = 0
      compute()
    }

    /** Begins with this step, unless its parameters are not here. */
    private def compute(): Unit = {
      stepped = now
      if (step >= layers) computed = now + pushing.compute(2 * layers - 1 - step)
      else computed = if (here(pulling.batchOf(step))) now + pulling.compute(step) else Double.PositiveInfinity
    }

    private def stepDone(): Unit = {
      val layer = 2 * layers - 1 - step
      step += 1
      if (step == layers) pulls.indices.foreach(here(_) = false)
      if (step > layers) {
        val batch = pushing.batchOf(layer)
        toPush(batch) -= 1
        if (toPush(batch) == 0) ask(batch, isPull = false)
      }
      if (step < 2 * layers) compute() else computed = Double.PositiveInfinity
      if (step == 2 * layers || ahead && step > layers) update()
    }

    /** What was sent is updated, and pulled; the next iteration begins with the last of it. */
    private def update(): Unit = {
      updating = Double.PositiveInfinity
      while (sent.nonEmpty) {
        pushing.stepsOf(sent.dequeue()).map(pulling.batchOf).foreach { whole =>
          toUpdate(whole) -= 1
          if (toUpdate(whole) == 0) pullBatch(whole)
        }
        updated += 1
      }
      if (updated == pushes.size) begin()
    }
  }
}

private[ibatch] object Iteration {

  /** So many iterations are looked at if they do not settle to equal ones: two by turns, for instance. */
  private val Most = 9

  /** So many that take equally long are followed by more of them. */
  private val Alike = 2
}
