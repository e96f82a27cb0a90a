# Pool analyses of tables.csv by mice and write pooled.csv: Rscript pooled.R
# R 4.2.2, mice 3.15, survival, MASS, sandwich, lme4, geepack and pROC as of Debian 12.
suppressMessages({library(mice); library(survival); library(MASS); library(sandwich); library(lme4); library(geepack); library(pROC)})
long <- read.csv("tables.csv", stringsAsFactors = TRUE)
long$level <- factor(long$level, levels = c("low", "mid", "high"))
tables <- split(long, long$imp)
rows <- NULL

add <- function(name, term, pooled) {
  found <- data.frame(analysis = name, term = term, estimate = pooled$estimate, se = pooled$se, df = pooled$df)
  rows <<- rbind(rows, found)
}

whole <- function(name, fit) {
  found <- summary(pool(as.mira(lapply(tables, fit))))
  add(name, as.character(found$term), data.frame(estimate = found$estimate, se = found$std.error, df = found$df))
}

# Estimates and variances of each table, given the degrees of freedom of the complete-data analysis.
scalar <- function(name, fits, dfcom) {
  terms <- names(fits[[1]]$estimate)
  for (k in seq_along(terms)) {
    Q <- sapply(fits, function(f) f$estimate[[k]])
    U <- sapply(fits, function(f) f$variance[[k]])
    p <- pool.scalar(Q, U, n = dfcom + 1, k = 1)
    add(name, terms[k], data.frame(estimate = p$qbar, se = sqrt(p$t), df = p$df))
  }
}

of <- function(fit, V = vcov(fit)) list(estimate = coef(fit), variance = diag(V)[names(coef(fit))])

whole("ols", function(t) lm(y ~ x * k, t))
whole("binomial", function(t) glm(yes ~ x + k, binomial, t, epsilon = 1e-14))
whole("poisson", function(t) glm(count ~ x + k, poisson, t, epsilon = 1e-14))
whole("phreg", function(t) coxph(Surv(time, event) ~ x + k, t, control = coxph.control(eps = 1e-11, toler.chol = 1e-13)))
tight <- list(reltol = 1e-14, maxit = 1000)
whole("ordered", function(t) polr(level ~ x + k, t, Hess = TRUE, control = tight))
scalar("weighted", lapply(tables, function(t) {
  fit <- lm(y ~ x + k, t, weights = w)
  of(fit, vcovHC(fit, "HC1"))
}), 156)
of_weights <- function(t) suppressWarnings(glm(yes ~ x + k, quasibinomial, t, weights = w, epsilon = 1e-14))
scalar("weighted_binomial", lapply(tables, function(t) of(of_weights(t), vcovHC(of_weights(t), "HC1"))), 156)
scalar("weighted_clustered", lapply(tables, function(t) {
  of(of_weights(t), vcovCL(of_weights(t), t$site, type = "HC1"))
}), 19)
scalar("clustered", lapply(tables, function(t) {
  fit <- glm(yes ~ x + k, binomial, t, epsilon = 1e-14)
  of(fit, vcovCL(fit, t$site, type = "HC1"))
}), 19)
scalar("mixed", lapply(tables, function(t) {
  fit <- lmer(y ~ x + k + (1 | site), t, control = lmerControl(optCtrl = list(xtol_abs = 1e-12, ftol_abs = 1e-14)))
  list(estimate = fixef(fit), variance = diag(as.matrix(vcov(fit))))
}), 154)
scalar("gee", lapply(tables, function(t) {
  t <- t[order(t$site), ]
  fit <- geeglm(yes ~ x + k, binomial, t, id = site, corstr = "exchangeable", control = geese.control(epsilon = 1e-12, maxit = 200))
  of(fit)
}), 19)

new <- data.frame(x = c(-1, 0, 2), k = factor(c("a", "b", "c"), levels = c("a", "b", "c")))
scalar("predict", lapply(tables, function(t) {
  fit <- glm(yes ~ x + k, binomial, t, epsilon = 1e-14)
  p <- predict(fit, new, type = "link", se.fit = TRUE)
  list(estimate = setNames(p$fit, 0:2), variance = p$se.fit^2)
}), 156)

# Average marginal effects: derivatives by the delta method with central differences.
scalar("effects", lapply(tables, function(t) {
  fit <- glm(yes ~ x * k, binomial, t, epsilon = 1e-14)
  mean_of <- function(b, t) plogis(drop(model.matrix(~ x * k, t) %*% b))
  effects <- function(b) {
    X <- model.matrix(~ x * k, t)
    slope <- b["x"] + ifelse(t$k == "b", b["x:kb"], 0) + ifelse(t$k == "c", b["x:kc"], 0)
    at <- function(level) { t$k <- factor(level, levels = c("a", "b", "c")); mean(mean_of(b, t)) }
    c(x = mean(dlogis(drop(X %*% b)) * slope), "k: b - a" = at("b") - at("a"), "k: c - a" = at("c") - at("a"))
  }
  b <- coef(fit)
  J <- sapply(seq_along(b), function(k) {
    h <- replace(numeric(length(b)), k, 1e-5)
    (effects(b + h) - effects(b - h)) / 2e-5
  })
  list(estimate = effects(b), variance = diag(J %*% vcov(fit) %*% t(J)))
}), 154)

# Quantities on the scales on which they are pooled.
one <- function(estimate, variance) list(estimate = estimate, variance = variance)
scalar("correlation", lapply(tables, function(t) one(c("x, y" = atanh(cor(t$x, t$y))), 1 / (nrow(t) - 3))), Inf)
scalar("auc", lapply(tables, function(t) {
  r <- roc(t$yes, t$x, quiet = TRUE, direction = "<")
  a <- as.numeric(auc(r))
  one(c("AUC of yes" = qlogis(a)), var(r) / (a * (1 - a))^2)
}), Inf)
scalar("survival", lapply(tables, function(t) {
  s <- summary(survfit(Surv(time, event) ~ 1, t[t$k == "b", ]), times = c(0.3, 1))
  one(setNames(log(-log(s$surv)), c("S(0.3)", "S(1)")), (s$std.err / s$surv / log(s$surv))^2)
}), Inf)
fits <- as.mira(lapply(tables, function(t) lm(y ~ x + k, t)))
add("r_squared", "R2", data.frame(estimate = pool.r.squared(fits)[1, "est"], se = NA, df = NA))

# The same tables as `Imputations.to_mice` writes them.
mids <- as.mids(read.csv("mids.csv", na.strings = "", stringsAsFactors = TRUE))
found <- summary(pool(with(mids, lm(y ~ x * k))))
add("mids", as.character(found$term), data.frame(estimate = found$estimate, se = found$std.error, df = found$df))
write.csv(format(rows, digits = 12), "pooled.csv", row.names = FALSE, quote = 2)
