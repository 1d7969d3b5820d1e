// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.io.IOException
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.file.{Files, Path}
import java.util.concurrent.{SynchronousQueue, ThreadPoolExecutor, TimeUnit}
import java.util.concurrent.atomic.AtomicInteger

import scala.concurrent.{Await, ExecutionContext, Future}
import scala.concurrent.duration._
import scala.jdk.CollectionConverters._

import com.codahale.metrics.MetricRegistry
import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.{CommConf, CommException, ManualClock}
import sparkdl.comm.chunks.Nodes
import sparkdl.comm.ibatch.{Batch, ComputingTimes}
import sparkdl.comm.transport.{InMemoryNetwork, InMemoryTransport}

/** Tests of two ranks on an in-memory network. */
class PsSessionSpec extends AnyFunSuite {
  private val Job = 7L
  private val TimeoutSeconds = 5L
  private var clock: ManualClock = _
  private var executors: IndexedSeq[InMemoryTransport] = IndexedSeq.empty
  private var pools: IndexedSeq[CountingPool] = IndexedSeq.empty
  private var registries: IndexedSeq[MetricRegistry] = IndexedSeq.empty
  private var nodes: IndexedSeq[PsNode] = IndexedSeq.empty

  private def gauges(name: String): Seq[Any] = registries.map(_.getGauges.get(name).getValue)
  private def lingering: Seq[Any] = gauges("ps.lingering.bytes")

  private final class CountingPool
      extends ThreadPoolExecutor(
        0,
        Int.MaxValue,
        1,
        TimeUnit.SECONDS,
        new SynchronousQueue[Runnable]
      ) {
    val tasks = new AtomicInteger
    override def execute(task: Runnable): Unit = {
      tasks.incrementAndGet()
      super.execute(task)
    }
  }

  private final class Worker(
      val session: PsSession,
      val map: SegmentMap,
      path: String,
      byLayer: Boolean
  ) {
    private val batches =
      if (byLayer) map.layout.layers.indices.map(layer => Batch(layer + 1, layer + 1))
      else IndexedSeq(Batch(1, map.layout.layers.size))
    val transfers: BucketTransfers = session.attach(path, batches, batches)
    private val memory = Segment.map(path, map.bytes)
    def write(offset: Long, value: Float): Unit =
      memory.putFloats(offset, Array.fill(map.layout.total.toInt)(value), map.layout.total.toInt)
    def read(offset: Long): Set[Float] = {
      val values = new Array[Float](map.layout.total.toInt)
      memory.getFloats(offset, values, values.length)
      values.toSet
    }

    /**
     * Return this worker's mappings in this process. Other mappings go with the garbage collector.
     */
    def mappings: Int = {
      val file = Files.getAttribute(Path.of(path), "unix:ino").toString
      val maps = scala.io.Source.fromFile("/proc/self/maps")
      try maps.getLines().map(_.split(" +")).count(line =>
          line(4) == file && line.last == "(deleted)"
        )
      finally maps.close()
    }
    def gradientsOfShard: Set[Float] = map.shard.flatMap { range =>
      val values = new Array[Float](range.count.toInt)
      memory.getFloats(map.gradients + range.start * 4, values, values.length)
      values
    }.toSet
    def summed: Long = memory.slices(map.summed, 8).head.order(ByteOrder.nativeOrder).getLong
    def writeShard(value: Float): Unit = map.shard.foreach { range =>
      memory.putFloats(map.master(range), Array.fill(range.count.toInt)(value), range.count.toInt)
    }
  }

  private def withWorkers(layers: Long*)(body: IndexedSeq[Worker] => Unit): Unit =
    withWorkers(layers, pullsAhead = false)(body)

  private def withWorkers(
      layers: Seq[Long],
      pullsAhead: Boolean,
      byLayer: Boolean = false,
      encodings: Encodings = Encodings(Fp32),
      sharesMemory: Boolean = false,
      isSequential: Boolean = false,
      profileIterations: Option[Int] = None,
      before: IndexedSeq[String] => Unit = _ => ()
  )(body: IndexedSeq[Worker] => Unit): Unit = {
    val network = new InMemoryNetwork
    executors = IndexedSeq.tabulate(2)(network.executor)
    clock = new ManualClock
    pools = IndexedSeq.fill(2)(new CountingPool)
    registries = IndexedSeq.fill(2)(new MetricRegistry)
    nodes = executors.indices.map { rank =>
      new PsNode(executors(rank), CommConf(0, 1), registries(rank), clock, Some(pools(rank)))
    }
    nodes.foreach(_.address)
    val peers = executors.map(_.address)
    val sessions = nodes.indices.map(rank => nodes(rank).join(Job, rank))
    val settings =
      SessionSettings(
        encodings,
        pullsAhead,
        sharesMemory,
        isSequential,
        profileIterations,
        TimeoutSeconds.toDouble
      )
    val maps = sessions.map(_.open(peers, layers.toIndexedSeq, settings))
    Memory.withPath(maps(0).bytes) { first =>
      Memory.withPath(maps(1).bytes) { second =>
        val paths = IndexedSeq(first, second)
        try {
          before(paths)
          val workers = sessions.indices.map(rank =>
            new Worker(sessions(rank), maps(rank), paths(rank), byLayer)
          )
          body(workers)
        } finally {
          sessions.foreach(_.close())
          nodes.foreach(_.close())
        }
      }
    }
  }

  /**
   * Run one iteration with gradients 1 and 2. Each rank's optimizer sets its shard to minus their
   * sum times its number.
   */
  private def iterate(workers: IndexedSeq[Worker]): Unit = {
    workers.zip(Seq(1f, 2f)).foreach { case (worker, gradient) =>
      worker.write(worker.map.gradients, gradient)
      worker.transfers.push(0, 0)
      worker.transfers.prefetch(1)
    }
    val collected = workers.map(_.transfers.collect(0, 0))
    workers.foreach { worker =>
      assert(worker.read(worker.map.gradients) === Set(1f + worker.map.rank, 3f))
      worker.write(worker.map.parameters(1), -3f * (worker.map.rank + 1))
    }
    workers.foreach(_.transfers.publish(1, 0))
    val pulled = workers.map(_.transfers.pull(1, 0))
    workers.foreach(worker => assert(worker.read(worker.map.parameters(1)) === Set(-3f, -6f)))
    (pulled ++ collected).zip(workers ++ workers).foreach { case (transfer, worker) =>
      val shard = worker.map.shard.map(_.count).sum * 4
      assert(transfer.bytes === shard, "both shards are equally large")
    }
  }

  test("small blocks travel inside their notices, and parameters are in the store too") {
    withWorkers(16000, 1600) { workers =>
      iterate(workers)
      assert(executors.map(_.served.get) === Seq(0, 0))
      executors.zipWithIndex.foreach { case (executor, rank) =>
        assert(executor.published.keySet.asScala === Set(BlockNames.parameters(rank, 0, 1)))
      }
    }
  }

  /** Pull the initial parameters, which an encoding other than fp32 needs. */
  private def pullFirst(workers: IndexedSeq[Worker]): Unit = {
    workers.foreach(worker => worker.writeShard(0.5f * (worker.map.rank + 1)))
    workers.foreach(_.transfers.publish(0, 0))
    workers.foreach(_.transfers.prefetch(0))
    workers.foreach(_.transfers.pull(0, 0))
    workers.foreach(worker => assert(worker.read(worker.map.parameters(0)) === Set(0.5f, 1f)))
  }

  test("larger blocks are fetched") {
    withWorkers(40000) { workers =>
      iterate(workers)
      assert(executors.map(_.served.get) === Seq(2, 2))
    }
  }

  test("transfers are measured if that is set, and reported with measured computing times") {
    val computing =
      ComputingTimes(Some(IndexedSeq(1.0)), Some(IndexedSeq(2.0)), update = 0.25, Some(4.0))
    for (steps <- Seq(Some(5), None))
      withWorkers(Seq(40000L), pullsAhead = false, profileIterations = steps) { workers =>
        clock.tickNanos = 1
        iterate(workers)
        val found = workers.head.transfers.report(computing)
        assert(found.seconds === Some(4.0))
        assert(found.pull.map(_.compute) === steps.map(_ => IndexedSeq(1.0)))
        assert(found.push.map(push => (push.compute, push.update)) === steps.map(_ =>
          (IndexedSeq(2.0), 0.25)
        ))
        assert(workers.head.transfers.report(computing.copy(forward = None)).pull === None)
      }
  }

  test("small blocks are fetched while transfers are measured, and inline afterwards") {
    val computing =
      ComputingTimes(Some(IndexedSeq(1.0)), Some(IndexedSeq(2.0)), update = 0, Some(4.0))
    withWorkers(Seq(1600L), pullsAhead = false, profileIterations = Some(5)) { workers =>
      clock.tickNanos = 1
      iterate(workers)
      assert(executors.map(_.served.get) === Seq(2, 2))
      val found = workers.head.transfers.report(computing)
      assert(found.pull.exists(_.startup > 0) && found.push.exists(_.startup > 0))
    }
    withWorkers(Seq(1600L), pullsAhead = false, profileIterations = Some(0)) { workers =>
      iterate(workers)
      assert(
        executors.map(_.served.get) === Seq(1, 1),
        "gradients of version 0, no parameters of version 1"
      )
    }
  }

  test("16-bit blocks are decoded as they arrive") {
    withWorkers(Seq(300000L, 1700L), pullsAhead = false, encodings = Encodings(Fp16)) { workers =>
      pullFirst(workers)
      assert(executors.map(_.served.get) === Seq(1, 1))
    }
  }

  for (encodings <- Seq(Encodings(Fp32), Encodings(Bf16)))
    test(s"ranks of one host read each other's memory: ${encodings.parameters.name}") {
      withWorkers(
        Seq(80000L, 1600L),
        pullsAhead = false,
        encodings = encodings,
        sharesMemory = true
      ) { workers =>
        if (encodings.parameters.inPlace) iterate(workers) else pullFirst(workers)
        assert(executors.map(_.served.get) === Seq(0, 0))
        assert(workers(0).mappings === 3, "the session's, its neighbor's and the test's own")
        workers.foreach(_.session.close())
        assert(workers(0).mappings === 1)
      }
    }

  for ((isSequential, begun) <- Seq(false -> 3, true -> 1))
    test(
      s"a bucket is requested only after the one before arrived, if that is set: $isSequential"
    ) {
      withWorkers(
        Seq(40000L, 40000L, 40000L),
        pullsAhead = false,
        byLayer = true,
        isSequential = isSequential
      ) {
        workers =>
          val buckets = 0 until 3
          workers.foreach { worker =>
            buckets.foreach(worker.transfers.push(0, _))
            worker.transfers.prefetch(1)
          }
          workers.foreach(worker => buckets.foreach(worker.transfers.collect(0, _)))
          executors(1).asked.clear()
          executors(1).silent = true
          buckets.foreach(workers(1).transfers.publish(1, _))
          val expected = buckets.map(BlockNames.parameters(1, _, 1))
          assert(executors(1).asked.asScala.toSeq === expected.take(begun))
      }
      withWorkers(
        Seq(40000L, 40000L, 40000L),
        pullsAhead = false,
        byLayer = true,
        isSequential = isSequential
      ) {
        workers =>
          // Published in reverse order, they arrive nevertheless.
          val buckets = 0 until 3
          workers.foreach { worker =>
            buckets.foreach(worker.transfers.push(0, _))
            worker.transfers.prefetch(1)
          }
          workers.foreach(worker => buckets.foreach(worker.transfers.collect(0, _)))
          workers.foreach(worker => buckets.reverse.foreach(worker.transfers.publish(1, _)))
          workers.foreach(_.transfers.pull(1, 2))
          assert(executors(1).asked.asScala.toSeq.filter(_.startsWith("sparkdl_p")).size === 3)
      }
    }

  test("an offer of memory is kept until its receiver knows the layout") {
    val layout = new ShardLayout(IndexedSeq(80000L), 2)
    def mapOf(rank: Int): SegmentMap =
      new SegmentMap(layout, rank, Encodings(Fp32), pullsAhead = false)
    Memory.withPath(mapOf(1).bytes) { path =>
      val segment = Segment.map(path, mapOf(1).bytes)
      mapOf(1).markOwner(segment, Job)
      val neighbors = new Neighbors(Job)
      neighbors.onOffer(SegmentOffer(Job, 0, 1, SegmentOffer.thisHost.get, path))
      assert(neighbors(1).isEmpty)
      neighbors.allow(mapOf)
      assert(neighbors(1).isDefined)
      neighbors.close()
      segment.close()
    }
  }

  test("memory that does not belong to the rank that offers it is not read") {
    // The first offer counts.
    def offerOwn(paths: IndexedSeq[String]): Unit =
      paths.zipWithIndex.foreach { case (path, rank) =>
        executors(rank).deliver(
          SegmentOffer(Job, rank, 1 - rank, SegmentOffer.thisHost.get, path).encode
        )
      }
    withWorkers(Seq(80000L), pullsAhead = false, sharesMemory = true, before = offerOwn) {
      workers =>
        iterate(workers)
        assert(executors.map(_.served.get) === Seq(2, 2))
    }
  }

  for (sharesMemory <- Seq(false, true))
    test(
      s"gradient blocks of different sizes arrive in their own size, from memory: $sharesMemory"
    ) {
      withWorkers(
        Seq(40000L, 1600L),
        pullsAhead = false,
        encodings = Encodings(Fp32, SparseEncoding),
        sharesMemory = sharesMemory
      ) {
        workers =>
          workers.foreach(worker => worker.write(worker.map.gradients, 0f))
          workers(0).write(workers(0).map.gradients, 1f)
          workers.foreach(_.transfers.push(0, 0))
          val bytes = workers.map(_.transfers.collect(0, 0).bytes)
          workers.foreach(worker => assert(worker.gradientsOfShard === Set(1f)))
          val shard = workers(1).map.shard.map(_.count).sum
          // no entry in one stretch; all elements, densely
          assert(bytes === Seq(8 + 4, 4 + shard * 4))
      }
    }

  test("a failed rank requests nothing more, and waits for no earlier request") {
    withWorkers(Seq.fill(8)(40000L), pullsAhead = false, byLayer = true) { workers =>
      executors(1).silent = true
      // each notifies rank 0 at once, on this thread
      (0 until 8).foreach(workers(1).transfers.push(0, _))
      val fetcher = nodes(0).fetcher
      assert(fetcher.pending === 8)
      workers(0).session.fail(new CommException(CommException.Closed, "left"))
      assert(fetcher.pending === 0)
      assert(pools(0).tasks.get === 0)
    }
  }

  for (failure <- Seq(None, Some(new IOException("a lost disk")), Some(new OutOfMemoryError)))
    test(
      "blocks that cannot be retired when a session ends are retired later; attempts throw" +
        s" $failure"
    ) {
      withWorkers(16000, 1600) { workers =>
        iterate(workers)
        assert(workers(0).mappings === 2, "the session's and the test's own")
        executors(0).heldAttempts = executors(0).attemptsToRetire.get + 4
        executors(0).retireFailure = failure
        workers(0).session.close()
        assert(gauges("ps.sessions") === Seq(0, 1), "its rank has left nevertheless")
        clock.advance(3)
        assert(!executors(0).published.isEmpty && workers(0).mappings === 2)
        assert(lingering === Seq(workers(0).map.bytes, 0))
        clock.advance(1)
        assert(executors(0).published.isEmpty && workers(0).mappings === 1)
        assert(lingering === Seq(0, 0))
      }
    }

  test(
    "a wait for a rank that does not push ends at its deadline, with that rank and the key to" +
      " change"
  ) {
    withWorkers(1600) { workers =>
      workers(0).transfers.push(0, 0)
      val waiting = Future(intercept[CommException](workers(0).transfers.collect(0, 0)))(
        ExecutionContext.global
      )
      clock.awaitWaiter()
      clock.advance(TimeoutSeconds - 1)
      assert(!waiting.isCompleted)
      clock.advance(1)
      val error = Await.result(waiting, 20.seconds)
      assert(error.kind === CommException.Deadline && error.peer === 1)
      Seq(s"waited $TimeoutSeconds.0 s for rank 1", "spark.sparkdl.comm.timeout").foreach(part =>
        assert(error.getMessage.contains(part))
      )
    }
  }

  for (operation <- Seq("pull", "collect"))
    test(
      s"a wait for other ranks and then for readers takes at most one timeout in all: $operation"
    ) {
      withWorkers(40000) { workers =>
        val (one, other) = (workers(0).transfers, workers(1).transfers)
        if (operation == "collect") iterate(workers)
        val version = if (operation == "collect") 1L else 0L
        workers.foreach(_.transfers.prefetch(version + 1))
        one.push(version, 0)
        if (operation == "pull") {
          other.push(version, 0)
          workers.foreach(_.transfers.collect(version, 0))
          one.publish(version + 1, 0)
        }
        executors(0).readersStay = true
        val attempts = executors(0).attemptsToRetire.get
        def wait(): Unit =
          if (operation == "pull") one.pull(version + 1, 0) else one.collect(version, 0)
        val waiting = Future(intercept[CommException](wait()))(ExecutionContext.global)
        clock.awaitWaiter()
        clock.advance(TimeoutSeconds - 1)
        if (operation == "pull") other.publish(version + 1, 0) else other.push(version, 0)
        val error =
          try {
            Nodes.eventually("it waits for readers")(executors(0).attemptsToRetire.get > attempts)
            clock.advance(1)
            Await.result(waiting, 20.seconds)
          } finally executors(0).readersStay = false
        assert(error.kind === CommException.Deadline)
        Seq("a reader still held block", s"after $TimeoutSeconds.0 s").foreach(part =>
          assert(error.getMessage.contains(part))
        )
      }
    }

  test("parameters that are pulled ahead do not overwrite those in use") {
    withWorkers(Seq(40000L, 1600L), pullsAhead = true) { workers =>
      workers.foreach { worker =>
        worker.write(worker.map.parameters(0), 5f)
        worker.transfers.prefetch(1)
        worker.write(worker.map.gradients, 1f)
      }
      workers.foreach(_.transfers.push(0, 0))
      workers.foreach { worker =>
        worker.transfers.collect(0, 0)
        assert(worker.summed === 1)
        worker.writeShard(-1f - worker.map.rank)
      }
      workers.foreach(_.transfers.publish(1, 0))
      workers.foreach { worker =>
        worker.transfers.pull(1, 0)
        assert(worker.read(worker.map.parameters(0)) === Set(5f))
        assert(worker.read(worker.map.parameters(1)) === Set(-1f, -2f))
      }
    }
  }

  test("a version that was not pulled cannot be pushed, nor the next version prefetched") {
    withWorkers(1600) { workers =>
      workers(0).transfers.prefetch(1)
      Seq[BucketTransfers => Unit](_.push(1, 0), _.prefetch(2)).foreach { early =>
        assert(intercept[CommException](early(workers(0).transfers)).getMessage.contains("before"))
      }
    }
  }

  test("buckets that lack a layer, or have it twice, are refused for any numbers") {
    withWorkers(Seq.fill(3)(1600L), pullsAhead = false) { workers =>
      val right = IndexedSeq(Batch(2, 3), Batch(1, 1))
      workers(0).transfers.cut(right, right)
      val wrong = Seq(
        IndexedSeq(Batch(1, 2)),
        IndexedSeq(Batch(1, 2), Batch(2, 3)),
        IndexedSeq(Batch(1, 1), Batch(3, 3)),
        IndexedSeq(Batch(1, 0), Batch(1, 3)),
        IndexedSeq(Batch(1, Int.MaxValue)),
        IndexedSeq.empty
      )
      wrong.foreach { buckets =>
        val error = intercept[CommException](workers(0).transfers.cut(right, buckets))
        assert(error.kind === CommException.Protocol && error.getMessage.contains("3 layers"))
      }
    }
  }

  test("a notice with another size than its block fails the session") {
    withWorkers(1600) { workers =>
      val contents = ByteBuffer.allocate(7)
      executors(0).deliver(Notice(Job, 0, 1, Notice.Gradients, 0, 0, 7, contents).encode)
      val error = intercept[CommException](workers(0).transfers.push(0, 0))
      assert(error.getMessage.contains("7 bytes") && error.peer === 1)
    }
  }
}
