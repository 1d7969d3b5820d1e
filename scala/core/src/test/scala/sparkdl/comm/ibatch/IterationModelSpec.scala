// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ibatch

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.{Clock, ManualClock, Seeds}

class IterationModelSpec extends AnyFunSuite {
  private def profile(startup: Double, transfer: Seq[Double], compute: Seq[Double]): Profile =
    Profile(startup, transfer.toIndexedSeq, compute.toIndexedSeq)

  private def backward(forward: Profile): Profile =
    forward.copy(compute = forward.compute.map(_ * 2))

  private def profiles(seed: Int, count: Int): Iterator[Profile] = {
    val random = Seeds.random(seed)
    Iterator.fill(count) {
      val layers = 1 + random.nextInt(8)
      def times(most: Double) = Seq.fill(layers)(random.nextDouble() * most)
      profile(random.nextDouble() * 0.2, times(1 + random.nextInt(3)), times(1 + random.nextInt(3)))
    }
  }

  private def seconds(forward: Profile, pull: Plan, push: Plan): Double =
    new IterationModel(forward, backward(forward)).seconds(pull.batches, push.batches)

  private def near(one: Double, other: Double): Boolean =
    math.abs(one - other) <= 1e-6 * math.max(one, other)

  test("with one batch everything is sequential") {
    profiles(1, 200).foreach { forward =>
      val whole = Planner.plan(forward, Policy.Whole)
      val expected = 2 * (forward.startup + forward.transfer.sum) + 3 * forward.compute.sum
      assert(near(seconds(forward, whole, whole), expected))
    }
  }

  test("computing waits while a batch is handled, in each direction") {
    profiles(6, 200).foreach { forward =>
      val slow = forward.copy(handling = 0.25)
      def taken(pull: Policy, push: Policy) = new IterationModel(slow, backward(slow)).seconds(
        Planner.plan(slow, pull).batches,
        Planner.plan(slow, push).batches
      )
      val whole = 2 * (forward.startup + forward.transfer.sum) + 3 * forward.compute.sum
      assert(near(taken(Policy.Whole, Policy.Whole), whole + 2 * slow.handling))
      assert(taken(Policy.Layerwise, Policy.Layerwise) >=
        3 * forward.compute.sum + 2 * forward.layers * slow.handling)
    }
  }

  test("batches take at least the busiest resource's time, and at most the sequential time") {
    val random = new Random(2)
    profiles(3, 500).foreach { forward =>
      val pipeline = new Pipeline(forward)
      def cut() =
        pipeline.plan((1 until forward.layers).filter(_ => random.nextBoolean()) :+ forward.layers)
      val (pull, push) = (cut(), cut())
      val (sending, computing) = (2 * forward.transfer.sum, 3 * forward.compute.sum)
      val startups = (pull.batches.size + push.batches.size) * forward.startup
      val found = seconds(forward, pull, push)
      assert(found >= math.max(math.max(sending, computing), startups) * 0.999)
      assert(found <= (sending + computing + startups) * 1.001)
    }
  }

  test(
    "the last layer's gradients travel during the second layer's backward pass, its parameters" +
      " during the first's"
  ) {
    def with3(last: Double, policy: Policy, first: Double = 0, noticeBytes: Long = 0) = {
      val forward =
        profile(0, Seq(first, 0, last), Seq(0.5, 0.5, 0)).copy(
          bytes = Vector(1, 1, 100),
          noticeBytes = noticeBytes
        )
      val plan = Planner.plan(forward, policy)
      seconds(forward, plan, plan)
    }
    assert(near(with3(0.9, Policy.Layerwise), 3.0))
    assert(near(with3(1.2, Policy.Layerwise), 3.2), "the first layer's parameters overtake them")
    assert(near(with3(1.2, Policy.Layerwise, first = 0.2), 3.6), "and have the whole link")
    assert(
      near(with3(1.2, Policy.Layerwise, first = 0.2, noticeBytes = 1), 3.6),
      "also inline ones"
    )
    assert(near(with3(0.9, Policy.Whole), 4.8))
  }

  test("inline blocks have no start-up") {
    def took(startup: Double, noticeBytes: Long) = {
      val forward = profile(startup, Seq(0.1, 0.1), Seq(1, 1)).copy(
        bytes = Vector(1, 1),
        noticeBytes = noticeBytes
      )
      val layerwise = Planner.plan(forward, Policy.Layerwise)
      seconds(forward, layerwise, layerwise)
    }
    assert(near(took(0.5, noticeBytes = 1), took(0, noticeBytes = 1)))
    assert(took(0.5, noticeBytes = 0) > took(0.5, noticeBytes = 1) + 0.9)
  }

  test("start-ups follow one another") {
    val forward = profile(0.5, Seq(0, 0), Seq(0, 0))
    val layerwise = Planner.plan(forward, Policy.Layerwise)
    assert(near(seconds(forward, layerwise, layerwise), 2.0))
  }

  test("a sequential batch pays its start-up on an idle link") {
    val forward = profile(0.5, Seq(1, 1), Seq(0, 0))
    val (layerwise, whole) =
      (Planner.plan(forward, Policy.Layerwise), Planner.plan(forward, Policy.Whole))
    assert(
      near(seconds(forward, layerwise, whole), 2.5 + 2.5),
      "the second start-up ends before the first batch arrives"
    )
    assert(near(seconds(forward.copy(isSequential = true), layerwise, whole), 2 * 1.5 + 2.5))
  }

  test(
    "with sequential pulls and one push, an iteration takes the paper's pipeline and then the push"
  ) {
    profiles(7, 200).foreach { forward =>
      val pull = Planner.plan(forward, Policy.Paper)
      val push = Planner.plan(forward, Policy.Whole)
      val pushed = forward.startup + forward.transfer.sum + 2 * forward.compute.sum
      assert(near(seconds(forward.copy(isSequential = true), pull, push), pull.seconds + pushed))
    }
  }

  test(
    "plans of both directions are never predicted to be slower than greedy plans, one batch, or" +
      " one per layer"
  ) {
    profiles(4, 200).foreach { forward =>
      val (pull, push, found) = Planner.planBoth(forward, backward(forward), new ManualClock)
      assert(near(found, seconds(forward, pull, push)))
      Seq(Policy.IBatch, Policy.Whole, Policy.Layerwise).foreach { policy =>
        val other =
          seconds(forward, Planner.plan(forward, policy), Planner.plan(backward(forward), policy))
        assert(found <= other * (1 + 1e-9), policy.name)
      }
    }
  }

  test(
    "plans of a thousand layers are never predicted to be slower, although the search is cut short"
  ) {
    val random = new Random(6)
    def times() = IndexedSeq.fill(1000)(random.nextDouble() * 1e-3)
    val forward = profile(1e-4, times(), times())
    val (_, _, found) = Planner.planBoth(forward, backward(forward), new ManualClock)
    Seq(Policy.IBatch, Policy.Whole, Policy.Layerwise).foreach { policy =>
      val other =
        seconds(forward, Planner.plan(forward, policy), Planner.plan(backward(forward), policy))
      assert(found <= other * (1 + 1e-9), policy.name)
    }
  }

  test("out of time, the planner considers only the necessary plans") {
    var readings = 0
    val late = new Clock {
      private val clock = new ManualClock
      override def nanoTime: Long = {
        readings += 1
        if (readings == 1) 0 else 1L << 40
      }
      override def await(done: java.util.concurrent.CompletableFuture[_], deadline: Long): Unit =
        clock.await(done, deadline)
      override def after(nanos: Long)(task: => Unit): Unit = clock.after(nanos)(task)
    }
    profiles(8, 50).foreach { forward =>
      readings = 0
      val (_, _, found) = Planner.planBoth(forward, backward(forward), late)
      val greedy = Planner.plan(forward, Policy.IBatch)
      assert(near(found, seconds(forward, greedy, Planner.plan(backward(forward), Policy.IBatch))))
    }
  }

  test("start-ups overlap except for their gaps") {
    val forward = profile(0.5, Seq(0, 0), Seq(0, 0)).copy(gap = Some(0.1))
    val layerwise = Planner.plan(forward, Policy.Layerwise)
    // Pushes of both layers at once: the second layer's ends at 0.6. Then the pull of the first
    // layer, which forward needs.
    assert(near(seconds(forward, layerwise, layerwise), 2 * 0.5 + 0.1))
  }

  test("sums delay the next pull, and updates also delay computing") {
    val forward = profile(0, Seq(1.0), Seq(1.0))
    val push = backward(forward).copy(sum = Vector(0.25), update = Vector(0.5))
    val whole = Planner.plan(forward, Policy.Whole)
    assert(near(
      new IterationModel(forward, push).seconds(whole.batches, whole.batches),
      2 + 3 + 0.75
    ))
    // The last layer's update follows backward. The first layer's gradients arrive in its first
    // tenth of a second.
    val two = profile(0, Seq(0.1, 0.1), Seq(1.0, 1.0))
    val costly = backward(two).copy(update = Vector(0.0, 0.5))
    val layerwise = Planner.plan(two, Policy.Layerwise)
    val without =
      new IterationModel(two, backward(two)).seconds(layerwise.batches, layerwise.batches)
    assert(near(
      new IterationModel(two, costly).seconds(layerwise.batches, layerwise.batches),
      without + 0.4
    ))
  }

  test("pulls and pushes must have the same layers") {
    val one = profile(0, Seq(1), Seq(1))
    assert(
      intercept[IllegalArgumentException](new IterationModel(one, profile(0, Seq(1, 1), Seq(1, 1))))
        .getMessage.contains(
          "1 layers are pulled, but 2 are pushed"
        )
    )
  }
}
